"""Draws docs/images/thoughts.gif, the page of latent thoughts loop by loop: `python docs/picture.py`.

It needs chromium, Playwright and Pillow.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from loopt.cli import main

OUT = Path(__file__).parent / "images" / "thoughts.gif"
SIZE = {"width": 940, "height": 1000}
SECONDS = (1.2, 1.2, 1.2, 3.0)
"""How long each of the loops is shown."""


def draw() -> None:
    frames = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "thoughts.html"
        main(["thoughts", "--page", "--out", str(page), "--device", "cpu"])
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE)
        for loop in range(1, len(SECONDS) + 1):
            tab.goto("about:blank")
            tab.goto(f"{page.as_uri()}#step={loop}")
            tab.wait_for_selector("body[data-ready=yes]")
            frames.append(Image.open(io.BytesIO(tab.screenshot())).convert("RGB").quantize(64))
        browser.close()
    milliseconds = [int(1000 * seconds) for seconds in SECONDS]
    frames[0].save(OUT, save_all=True, append_images=frames[1:], duration=milliseconds, loop=0, optimize=True)
    print(f"{OUT}: {OUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    draw()
