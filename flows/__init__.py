"""Prefect flows: when and where stages run. No arithmetic and no file formats live here."""

from pathlib import Path

from ratchet.settings import child_environment, quiet_this_process

quiet_this_process()  # here, because Prefect reads its settings from the environment once, when it is imported
Path(child_environment()["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)  # Prefect makes only the last folder
