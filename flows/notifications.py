"""Have the server tell a webhook when a scheduled run does not end well: `python -m flows.notifications URL`.

An automation of Prefect's own, kept on the server; typed again it is the same one with the new address. The body is
{"text": …}, which Slack and its like take. Refuses to know who listens.
"""

from __future__ import annotations

import argparse
import asyncio
from datetime import timedelta

from prefect.automations import Automation
from prefect.blocks.webhook import Webhook
from prefect.events.actions import ActionTypesOrUnknown, CallWebhook
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from pydantic import SecretStr

NAME = "ratchet: a scheduled run did not end well"
BLOCK = "ratchet-notifications"
FLOWS = ["scheduled"]
ENDS = {f"prefect.flow-run.{state}" for state in ("Failed", "Crashed", "TimedOut", "Stopped")}
PAYLOAD = (
    '{"text": {{ ("Ratchet: run " ~ flow_run.name ~ " of " ~ flow.name ~ ": " ~ flow_run.state.name'
    ' ~ ", " ~ flow_run.state.message) | tojson }}}'
)


async def tell(url: str) -> None:
    """Make or change the automation so that it posts to `url`."""
    block = Webhook(method="POST", url=SecretStr(url), allow_private_urls=True)
    saved = await block.asave(BLOCK, overwrite=True)
    trigger = EventTrigger(
        expect=ENDS,
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
        match_related=ResourceSpecification({"prefect.resource.role": "flow", "prefect.resource.name": FLOWS}),
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )
    actions: list[ActionTypesOrUnknown] = [CallWebhook(block_document_id=saved, payload=PAYLOAD)]
    wanted = Automation(name=NAME, trigger=trigger, actions=actions)
    try:
        wanted.id = (await Automation.aread(name=NAME)).id
    except ValueError:
        await wanted.acreate()
    else:
        await wanted.aupdate()


def main() -> None:
    """Read the command line; the server is the one that PREFECT_API_URL names."""
    parser = argparse.ArgumentParser(prog="python -m flows.notifications", description=__doc__)
    parser.add_argument("url", help="what to post to; it is kept on the server as a secret")
    asyncio.run(tell(parser.parse_args().url))
    print(f"notifications: {NAME!r} posts to that address")


if __name__ == "__main__":
    main()
