"""A program of MLIR text: what it takes, and where in the text that goes."""

from __future__ import annotations

from urllib.parse import quote

import pytest

pytestmark = pytest.mark.slow

DYNAMIC = """func.func @main(%x: tensor<?x64xf32>, %w: tensor<64x32xf32>) -> tensor<?x32xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<?x64xf32>, tensor<64x32xf32>) -> tensor<?x32xf32>
  return %y : tensor<?x32xf32>
}
"""
TWO = """func.func @first(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
func.func @second(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.tanh %a : tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
"""
SELECTED = (
    "(({ value, selectionStart, selectionEnd }) => value.slice(selectionStart, selectionEnd))(document.activeElement)"
)


def opened(visit, text="", devices="h200"):
    return visit(f"#/mlir?devices={devices}" + (f"&text={quote(text)}" if text else ""))


def program(page):
    return page.tab.get_by_label("Program", exact=True)


def test_an_example_is_predicted_and_its_lines_are_selected(visit):
    page = opened(visit, devices="h200,epyc-9005-vm-2c")
    assert "Paste a program" in page.tab.locator(".answers").inner_text()
    page.tab.get_by_role("button", name="Example", exact=True).click()
    page.tab.locator("article.card").first.wait_for()
    page.settle()
    assert page.tab.locator("article.card").count() == 2
    groups = page.tab.locator(".groups li")
    # Three kernels, and the host that an H200 waits for.
    assert groups.count() == 4
    assert "waiting for the host" in page.tab.locator(".groups").inner_text()
    assert page.tab.locator(".gutter i").count() > 2
    page.tab.get_by_role("button", name="Select line 6: matmul").click()
    assert page.tab.evaluate(SELECTED).startswith("  %y = stablehlo.dot_general %a")
    page.tab.get_by_label("Where it goes on").select_option(index=1)
    assert page.fields()["mlir.where"] == "amd-epyc-9005-vm-2c"
    assert "Where the time goes" in page.tab.locator(".answers").inner_text()
    text, words = program(page).input_value(), page.tab.locator(".answers").inner_text()
    page.tab.reload()
    page.settle()
    assert program(page).input_value() == text
    assert page.tab.locator(".answers").inner_text() == words


def test_open_sizes_are_asked_for(visit):
    page = opened(visit, DYNAMIC)
    query = page.tab.locator("[data-field=bind]", has_text="Sizes the program leaves open")
    assert "dim0 (size 0 of argument 0)" in query.locator(".field-error").first.inner_text()
    assert "--bind" not in page.tab.locator("form.spec").inner_text()
    size = page.tab.get_by_label("dim0")
    size.fill("128")
    size.blur()
    page.tab.locator("article.card").wait_for()
    page.settle()
    assert page.fields()["bind.dim0"] == "128"
    assert query.locator(".field-error").first.is_hidden()
    size.fill("many")
    page.tab.locator("[data-field='bind.dim0'] .field-error", has_text="must be a whole number").wait_for()
    page.tab.get_by_role("button", name="Example", exact=True).click()
    page.tab.locator(".groups li").nth(2).wait_for()
    page.settle()
    assert "bind.dim0" not in page.fields()
    assert page.tab.get_by_label("dim0").count() == 0


def test_functions_are_offered(visit):
    page = opened(visit, TWO)
    assert "name one of: first, second" in page.tab.locator("[data-field=function] .field-error").inner_text()
    page.tab.get_by_label("Function").select_option("second")
    page.tab.locator("article.card").wait_for()
    page.settle()
    assert page.tab.locator(".lead strong").inner_text() == "second"
    page.tab.get_by_label("Compiler").select_option("iree")
    page.settle()
    assert page.fields()["compiler"] == "iree"


def test_text_that_is_no_program_is_refused_at_the_text(visit):
    page = opened(visit)
    hostile = "<script>alert(1)</script>"
    program(page).fill(hostile)
    program(page).blur()
    assert page.fields()["text"] == hostile
    error = page.tab.locator("#program-error")
    error.wait_for()
    assert error.inner_text()
    assert program(page).get_attribute("aria-describedby") == "program-error"
    assert page.tab.locator("script").count() == 2
    program(page).fill("")
    page.settle()
    assert "Paste a program" in page.tab.locator(".answers").inner_text()
    assert error.is_hidden()


def test_what_was_not_understood_is_said(visit):
    page = opened(visit)

    def answer_with_unknown(route):
        answer = route.fetch().json()
        answer["answers"][0]["not_understood"] = [{"op": "my.<b>op</b>", "reason": "nobody <i>knows</i>"}]
        answer["answers"][0]["groups"][0] |= {"understood": False, "title": "<img src=x>"}
        route.fulfill(json=answer)

    page.tab.route("**/v1/predict/mlir", answer_with_unknown)
    page.tab.get_by_role("button", name="Example", exact=True).click()
    page.tab.get_by_text("1 operation was not understood").wait_for()
    assert "my.<b>op</b>: nobody <i>knows</i>" in page.tab.locator(".answers").inner_text()
    assert page.tab.locator(".answers img, .answers b, .answers .cautions i").count() == 0
    assert "(a guess)" in page.tab.locator(".groups").inner_text()


def test_files_are_read_and_bytecode_is_refused(visit):
    page = opened(visit)
    chooser = page.tab.locator("#program-file")
    chooser.set_input_files({"name": "a.mlirbc", "mimeType": "application/octet-stream", "buffer": b"ML\xefR\x01\x02"})
    page.tab.locator("#program-error", has_text="a.mlirbc is MLIR bytecode").wait_for()
    chooser.set_input_files({"name": "a.mlir", "mimeType": "text/plain", "buffer": TWO.encode()})
    page.tab.locator("[data-field=function] .field-error", has_text="name one of").wait_for()
    assert program(page).input_value() == TWO


def test_a_long_program_does_not_go_into_the_address(visit):
    page = opened(visit)
    long = TWO.replace("@second", "@main") + "// a remark\n" * 2000
    chooser = page.tab.locator("#program-file")
    chooser.set_input_files({"name": "a.mlir", "mimeType": "text/plain", "buffer": long.encode()})
    page.tab.locator("article.card").wait_for()
    page.settle()
    assert len(page.tab.url) < 500
    assert "too long to be written out" in page.tab.locator(".answers").inner_text()
    page.tab.get_by_role("tab", name="Accuracy").click()
    page.tab.get_by_role("tab", name="MLIR").click()
    assert program(page).input_value() == long
