"""What mkdocs calls as it builds the site: it adds the pages that are made from the code."""

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import generate

ROOT = generate.ROOT
STYLE = """.md-grid { max-width: 76rem; }
.md-typeset table:not([class]) code { white-space: nowrap; }
"""  # a terminal's lines of 100 characters fit, and names in tables stay whole


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and the pictures of benchmarks/results that pages show."""
    for path, text in generate.pages().items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "site.css", content=STYLE))
    for name in ("audit/page.png", "bench/perf.svg"):
        source = ROOT / "benchmarks" / "results" / name
        files.append(File.generated(config, f"images/{source.name}", abs_src_path=str(source)))
    return files
