"""Prefect flows: when and where stages run. No arithmetic and no file formats live here."""

from ratchet.settings import quiet_this_process

quiet_this_process()  # here, because Prefect reads its settings from the environment once, when it is imported
