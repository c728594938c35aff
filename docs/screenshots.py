"""Takes the pictures of docs/explorer.md from a running service: `python docs/screenshots.py http://127.0.0.1:8000/`.

Needs playwright, and Chromium on the search path.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parent / "screenshots"
MAX_B = 300_000
"""Largest picture, so that clones stay small."""

_GEMM = "family=gemm&dtype=bf16&sizes.m=4096&sizes.n=4096&sizes.k=4096&sizes.batch=1"
_NORM = "family=layernorm&variant=rmsnorm&impl=torch&dtype=bf16&sizes.rows=512&sizes.cols=8192"
_PROGRAM = (Path(__file__).parents[1] / "examples" / "mlp.mlir").read_text(encoding="utf-8")
_ROWS = "sweep.dim=rows&sweep.from=1&sweep.to=65536"
_PRICES = "price_per_hour.nvidia-h100-sxm-80gb=2.5&price_per_hour.nvidia-b200-sxm-180gb=4.5"
_WAIT_MS = 180_000
_ANSWERED = "() => document.querySelector('.answers')?.getAttribute('aria-busy') === 'false'"


@dataclass(frozen=True, slots=True)
class Picture:
    """A view as it is photographed; width and height are in pixels of the page."""

    name: str
    fragment: str
    theme: str = "light"
    width: int = 1440
    height: int = 1000


PICTURES = (
    Picture("llm", f"#/llm?{_PRICES}", height=1500),
    Picture("predict", f"#/predict?{_GEMM}&devices=nvidia-h200-sxm-141gb", height=1320),
    Picture("sweep", f"#/sweep?{_NORM}&devices=nvidia-h200-sxm-141gb,nvidia-b200-sxm-180gb&{_ROWS}"),
    Picture("compare-dark", f"#/compare?{_GEMM}&price_per_hour.nvidia-h200-sxm-141gb=3.5", theme="dark", height=1250),
    Picture("tiles", f"#/tiles?{_GEMM}&devices=nvidia-h200-sxm-141gb", height=1250),
    Picture("model", "#/model", height=1650),
    Picture("mlir", f"#/mlir?devices=nvidia-h200-sxm-141gb,amd-epyc-9005-vm-2c&text={quote(_PROGRAM)}", height=1300),
    Picture("data", "#/data?data.set=shipped&data.family=gemm&data.limit=10&data.row=3", height=1300),
    Picture("accuracy-dark", "#/accuracy", theme="dark", height=1250),
    Picture("phone", f"#/predict?{_GEMM}&devices=nvidia-h200-sxm-141gb", width=360, height=1500),
)  # fmt: skip


def take(browser: Browser, address: str, picture: Picture) -> Path:
    """Photograph one view.

    Raises:
        SystemExit: the picture is larger than `MAX_B`.
    """
    size = {"width": picture.width, "height": picture.height}
    with browser.new_context(viewport=size, color_scheme=picture.theme) as context:
        context.set_default_timeout(_WAIT_MS)
        tab = context.new_page()
        tab.goto(address + picture.fragment)
        tab.wait_for_function(_ANSWERED)
        path = FOLDER / f"{picture.name}.webp"
        path.write_bytes(tab.screenshot(type="webp", quality=82))
    if path.stat().st_size > MAX_B:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes; at most {MAX_B} are kept")
    return path


def main(address: str) -> None:
    """Take every picture of the service at `address`."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for picture in PICTURES:
            print(take(browser, address, picture))  # noqa: T201 - what a script says
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
