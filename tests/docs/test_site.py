"""The documentation builds without a warning, is up to date with the code, and asks no other host for anything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.docs_gen import PARTS, replaced

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*>""", re.I)
FOREIGN_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//")


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 5
    loaded = {
        tag
        for page in pages
        for tag in LOADED.findall(page.read_text(encoding="utf-8"))
        if 'rel="canonical"' not in tag
    }
    assert loaded == set()
    assert not [css for css in tmp_path.rglob("*.css") if FOREIGN_CSS.search(css.read_text(encoding="utf-8"))]


def test_the_generated_parts_are_what_the_code_says():
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tools/docs_gen.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_generated_part_replaces_what_stands_between_its_markers_and_nothing_else():
    text = "before\n<!-- generated: cli -->\nold\n<!-- end generated -->\nafter\n"
    once = replaced(text, "cli", "new \\1 text\n")
    assert once == "before\n<!-- generated: cli -->\n\nnew \\1 text\n\n<!-- end generated -->\nafter\n"
    assert replaced(once, "cli", "new \\1 text\n") == once


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_generated_part_has_its_place(part):
    text = (ROOT / part.page).read_text(encoding="utf-8")
    assert replaced(text, part.name, "x") != text
    with pytest.raises(ValueError, match="exactly one"):
        replaced("nothing here", part.name, "x")
