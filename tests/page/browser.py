"""Chromium, told what to do by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

STARTING_SECONDS = 30
WAIT_SECONDS = 15
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "Space": ("Space", 32, " "),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "End": ("End", 35, ""),
    "Home": ("Home", 36, ""),
}


class Browser:
    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}

    async def __aenter__(self) -> Browser:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
        assert program, "the page's tests need Chromium: apt-get install chromium, or set CHROMIUM"
        self._process = await asyncio.create_subprocess_exec(
            program,
            *FLAGS,
            f"--user-data-dir={self._profile}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        port, path = await self._address()
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Exception):
            async with asyncio.timeout(5):
                await self.send("Browser.close")
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._socket.close()
        await self._session.close()
        try:
            async with asyncio.timeout(5):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _address(self) -> tuple[str, str]:
        file = self._profile / "DevToolsActivePort"
        ends = time.monotonic() + STARTING_SECONDS
        while time.monotonic() < ends:
            if file.exists() and len(lines := file.read_text().split()) == 2:
                return lines[0], lines[1]
            assert self._process.returncode is None, "Chromium has ended"
            await asyncio.sleep(0.05)
        raise AssertionError("Chromium does not answer")

    async def _read(self) -> None:
        async for message in self._socket:
            found = message.json()
            if "id" in found:
                answer = self._answers.pop(found["id"], None)
                if answer is not None and not answer.done():
                    answer.set_result(found)
            elif found.get("sessionId") in self._tabs:
                self._tabs[found["sessionId"]].on_event(found["method"], found["params"])

    async def send(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        async with asyncio.timeout(WAIT_SECONDS):
            answer = await self._answers[number]
        assert "error" not in answer, f"{method}: {answer['error']}"
        found: dict[str, Any] = answer["result"]
        return found

    async def open(self) -> Tab:
        target = (await self.send("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.send("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await tab.send(f"{domain}.enable")
        await tab.resize(1280, 860)
        return tab


class Tab:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.problems: list[str] = []
        """What the console says: errors and warnings."""
        self.asked: list[str] = []
        """Every address that was asked for."""
        self.sent: list[tuple[str, str]] = []
        """The method of every request, and the end of its path."""

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._browser.send(method, self._session, **params)

    def on_event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(str([each.get("value") for each in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            request = params["request"]
            self.asked.append(request["url"])
            self.sent.append((request["method"], "/".join(request["url"].split("/")[4:]).partition("?")[0]))

    async def go(self, url: str) -> None:
        await self.send("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression; promises are awaited."""
        found = await self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, script: str, seconds: float = WAIT_SECONDS) -> Any:
        """Waits until an expression is true, and gives its value."""
        ends = time.monotonic() + seconds
        while not (found := await self.run(script)):
            assert time.monotonic() < ends, f"not so after {seconds} s: {script}\n{await self.text()}"
            await asyncio.sleep(0.03)
        return found

    async def text(self) -> str:
        return str(await self.run("document.body?.innerText ?? ''"))

    async def shows(self, *texts: str) -> None:
        """Waits until the page shows all of these."""
        for text in texts:
            await self.until(f"document.body?.innerText.includes({text!r})")

    async def follow(self, text: str) -> None:
        """Clicks the link with this text, or that begins with it, as soon as it is there."""
        found = f"[...document.querySelectorAll('main a')].find(a => a.textContent.startsWith({text!r}))"
        await self.until(f"{found} && ({found}.click(), true)")

    async def click(self, selector: str) -> None:
        """Clicks the first such element, as soon as there is one."""
        found = f"document.querySelector({selector!r})"
        await self.until(f"{found} && ({found}.click(), true)")

    async def press(self, key: str, times: int = 1) -> None:
        code, number, text = KEYS.get(key, (key, ord(key[0].upper()), key))
        name = " " if key == "Space" else key
        common = {"key": name, "code": code, "windowsVirtualKeyCode": number}
        for _ in range(times):
            await self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
            await self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    async def type(self, text: str) -> None:
        await self.send("Input.insertText", text=text)

    async def tab_to(self, selector: str, most: int = 60) -> None:
        """Presses Tab until the focus is on such an element."""
        for _ in range(most):
            if await self.run(f"document.activeElement.matches({selector!r})"):
                return
            await self.press("Tab")
        raise AssertionError(f"Tab does not lead to {selector}")

    async def resize(self, width: int, height: int) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def dark(self) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def picture(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = await self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))
