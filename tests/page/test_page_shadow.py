"""The view of a shadow's disagreements in a real browser."""

from __future__ import annotations

from shadow_world import ONLY_FIT, PACKING, node, pod, shadowing
from stowplan.web import answer_by_name, make_pages, make_source, serve_locally


async def test_disagreements_are_shown_with_their_class_and_reason(tab, tmp_path):
    profile = {"schedulerName": "default-scheduler", "pluginConfig": [PACKING], **ONLY_FIT}
    async with shadowing(tmp_path, profile=profile) as world:
        pages = make_pages(make_source(world.service), world.service.shadow)
        async with serve_locally(answer_by_name(pages)) as link:
            await tab.go(f"{link}#/shadow")
            await tab.until(
                "document.querySelector('#agreement')?.textContent.includes('not placed a pod yet')"
            )
            await world.create(node("empty"), node("used"))
            await world.known("used")
            await world.place(pod("first", "4"), "used")
            await world.place(pod("second"), "empty")
            await tab.until("document.body.innerText.includes('empty scores')")
            text = await tab.run("document.body.innerText")
            assert "default/second" in text
            assert "Policy differs by NodeResourcesFit 1." in text
            assert "standby" not in text
            assert await tab.run("document.querySelector('nav [aria-current]').textContent") == "Shadow"
            await tab.go("about:blank")  # so that it asks no more
