"""The import arrows of docs/design.md, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "prony_loadgen": ROOT / "loadgen/prony_loadgen",
    "prony_server": ROOT / "server/prony_server",
    "prony_slo": ROOT / "slo/prony_slo",
    "prony_dashboards": ROOT / "dashboards/prony_dashboards",
    "prony": ROOT / "cli/prony",
}
# Which of our own modules each package may import besides itself; cli may import all.
MAY_IMPORT = {
    "prony_loadgen": (),
    "prony_server": (),
    "prony_slo": ("prony_loadgen",),
    "prony_dashboards": ("prony_loadgen.telemetry", "prony_server.telemetry"),
    "prony": ("prony_loadgen", "prony_server", "prony_slo", "prony_dashboards"),
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from prony_server import telemetry` imports prony_server.telemetry.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules() -> Iterator[tuple[str, Path, set[str]]]:
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            yield package, path, set(imports(path))


def within(name: str, allowed: str) -> bool:
    return name == allowed or name.startswith(allowed + ".")


def test_each_package_imports_only_along_the_arrows() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package, path, names in modules()
        for name in names
        if name.split(".")[0] in PACKAGES
        and not any(within(name, allowed) for allowed in (package, *MAY_IMPORT[package]))
    ]
    assert wrong == []


def test_locust_is_imported_in_one_module_because_importing_it_patches_the_process() -> None:
    importers = {
        path.name for _, path, names in modules() if any(within(n, "locust") for n in names)
    }
    assert importers == {"locust_user.py"}


def test_torch_stays_in_the_server() -> None:
    importers = {
        package
        for package, _, names in modules()
        if any(within(n, root) for n in names for root in ("torch", "transformers", "aiohttp"))
    }
    assert importers == {"prony_server"}
