"""`python -m benchmarks screenshots`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent.parent / "docs" / "images"
TEXT = (
    "The University of California, Los Angeles hired Ada Lovelace on Monday. "
    "She had worked for the Bank of England in London with Charles Babbage."
)
QUIET = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update"


def fill(page: Any, url: str) -> None:
    page.goto(url)
    page.fill("#text", TEXT)
    page.click("#find")
    page.wait_for_selector("#drawn em")
    page.get_by_role("button", name="Denoise").click()
    page.wait_for_selector("#stage:not([hidden])")
    page.select_option("#sentence", "1")
    page.wait_for_selector("#stage:has-text('Babbage')")


def page_screenshots(url: str) -> None:
    """Take the screenshots in docs/images of a running service, such as http://127.0.0.1:8000.

    Needs the package playwright and Debian's chromium.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=QUIET.split())
        page = browser.new_page(viewport={"width": 900, "height": 700}, reduced_motion="reduce")
        fill(page, url)
        page.locator("#step").fill("4")
        page.screenshot(path=IMAGES / "page.png", full_page=True)
        phone = browser.new_page(
            viewport={"width": 390, "height": 700}, color_scheme="dark", reduced_motion="reduce"
        )
        fill(phone, url)
        phone.locator("#step").fill("10")
        phone.screenshot(path=IMAGES / "page-phone-dark.png", full_page=True)
        browser.close()
