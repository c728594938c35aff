"""Modules joined into one script: order, names, what comes later, and what cannot be joined."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from kernelcast.api.page.bundle import Bundle, joined_styles
from kernelcast.api.page.static_files import STATIC_DIR, STYLES


@pytest.fixture
def modules(tmp_path):
    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.js").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def test_a_joined_script_does_what_its_modules_do(modules):
    node = shutil.which("node")
    if node is None:
        pytest.skip("the script is run by node, which is not installed")
    folder = modules(
        first='import { two as deux, add } from "./second.js";\nimport * as third from "./third.js";\n'
        "console.log(add(deux, third.three));\n",
        second="// A remark.\nexport const two = 2;\nexport function add(a, b) {\n  return a + b;\n}\n",
        third='import { two } from "./second.js";\n/** Three,\n * by the second. */\nexport const three = two + 1;\n',
    )
    (folder / "page.js").write_bytes(Bundle(folder / "first.js").script)
    done = subprocess.run([node, folder / "page.js"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "5\n"


def test_a_module_that_comes_later_takes_joined_ones(modules):
    folder = modules(
        first='import { two } from "./second.js";\nimport("./later.js");\n',
        second="export const two = 2;\n",
        later='import { two as deux } from "./second.js";\nimport { own } from "./own.js";\nexport const four = deux + own;\n',
        own="export const own = 2;\n",
    )
    text = Bundle(folder / "first.js").module(folder / "later.js").decode()
    assert 'const { two: deux } = globalThis.joinedModules["second.js"];' in text
    assert 'import { own } from "./own.js";' in text
    assert text.endswith("export const four = deux + own;\n")


@pytest.mark.parametrize(("texts", "words"), [
    ({"first": 'import { a } from "./second.js";\n', "second": 'import { b } from "./first.js";\n'}, "imports itself through"),
    ({"first": 'import whole from "./second.js";\n', "second": ""}, "cannot join 'import whole"),
    ({"first": "export default 2;\n"}, "cannot join 'export default"),
])  # fmt: skip
def test_what_cannot_be_joined_is_refused(modules, texts, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Bundle(modules(**texts) / "first.js")


def test_the_page_is_joined_with_all_of_its_style_sheets():
    assert sorted(STYLES) == sorted(path.name for path in (STATIC_DIR / "css").iterdir())
    styles = joined_styles(STATIC_DIR / "css", STYLES)
    assert styles.count(b"@media print") == 1
    script = Bundle(STATIC_DIR / "shell.js").script.decode()
    assert not re.search(r"^(import|export)\b(?!\()", script, re.MULTILINE)
    assert '"views/llm.js"' in script
    assert '"views/mlir.js"' not in script
