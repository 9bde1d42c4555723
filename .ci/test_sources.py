"""Finds the tests of the repository, and the `covers:` lines that stand at them."""

import ast
import io
import json
import os
import re
import subprocess
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

SDK = "sdk"


@dataclass(frozen=True)
class Test:
    """A test function, or a module (`name` is `*`), in a file."""

    file: Path
    module: tuple[str, ...]
    name: str
    line: int
    is_ignored: bool = False

    @property
    def is_module(self) -> bool:
        return self.name == "*"


@dataclass(frozen=True)
class Mark:
    """A `covers` line; `test` is `None` where no test follows."""

    file: Path
    line: int
    ids: tuple[str, ...]
    test: Test | None


@dataclass(frozen=True)
class Submodule:
    """A `mod name;` of a file, inside of inline modules."""

    module: tuple[str, ...]
    name: str
    path: str | None


@dataclass
class Source:
    """The tests of a file, and the lines that name ids."""

    tests: list[Test] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    submodules: list[Submodule] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Target:
    """A target of Cargo whose tests are run."""

    name: str
    label: str
    root: Path


def ids_of(text: str) -> tuple[str, ...]:
    """The ids after `covers:`."""
    return tuple(word.strip() for word in text.split(","))


RUST_MARK = re.compile(r"\s*//([/!]?)\s*covers:(.*)", re.IGNORECASE)
RUST_TEST = re.compile(r"#\[(tokio::)?test\b")
RUST_FN = re.compile(r"(?:pub(?:\([^)]*\))? )?(?:async )?fn (\w+)")
RUST_MOD = re.compile(r"(?:pub(?:\([^)]*\))? )?mod (\w+)( \{|;)$")


def read_rust(file: Path, text: str) -> Source:
    """Reads lines as rustfmt leaves them: an inline module ends at a brace in the column of its `mod`."""
    source = Source()
    inline: list[tuple[int, str]] = []
    attributes: list[str] = []
    marks: list[tuple[int, tuple[str, ...]]] = []
    open_attribute: int | None = None
    modules: list[tuple[int, tuple[str, ...], tuple[str, ...]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        code, indent = line.strip(), len(line) - len(line.lstrip())
        module = tuple(name for _, name in inline)
        if open_attribute is not None:
            if indent == open_attribute and code.endswith("]"):
                open_attribute = None
        elif mark := RUST_MARK.match(line):
            if mark[1] == "!":
                modules.append((number, ids_of(mark[2]), module))
            elif mark[1] == "/":
                marks.append((number, ids_of(mark[2])))
            else:
                source.marks.append(Mark(file, number, ids_of(mark[2]), None))
        elif code.startswith("#["):
            attributes.append(code)
            open_attribute = None if code.endswith("]") else indent
        elif code.startswith("//") or not code:
            continue
        else:
            test = None
            if function := RUST_FN.match(code):
                if any(RUST_TEST.match(attribute) for attribute in attributes):
                    is_ignored = any(attribute.startswith("#[ignore") for attribute in attributes)
                    test = Test(file, module, function[1], number, is_ignored)
                    source.tests.append(test)
            elif declared := RUST_MOD.match(code):
                if declared[2] == ";":
                    paths = [re.match(r'#\[path = "(.*)"\]', attribute) for attribute in attributes]
                    path = next((path[1] for path in paths if path), None)
                    source.submodules.append(Submodule(module, declared[1], path))
                else:
                    inline.append((indent, declared[1]))
            elif code == "}" and inline and indent == inline[-1][0]:
                inline.pop()
            source.marks += [Mark(file, at, ids, test) for at, ids in marks]
            attributes, marks = [], []
    source.marks += [Mark(file, at, ids, None) for at, ids in marks]
    source.marks += [Mark(file, at, ids, Test(file, module, "*", at)) for at, ids, module in modules]
    return source


def is_case(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "case"


def read_python(file: Path, text: str) -> Source:
    """Reads the cases of the SDKs: functions below `@case(..)`, and what a file registers by calls of `case`."""
    source, tree, lines = Source(), ast.parse(text), text.splitlines()
    at_case: dict[int, Test] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            source.imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef) and any(map(is_case, node.decorator_list)):
            test = Test(file, (file.stem,), node.name, node.lineno)
            source.tests.append(test)
            at_case[node.decorator_list[0].lineno] = test
    all_cases = any(is_case(node) for node in ast.walk(tree))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        at = token.start[0]
        if token.type == tokenize.COMMENT and (mark := re.match(r"#\s*covers:(.*)", token.string, re.IGNORECASE)):
            following = (n for n in range(at, len(lines)) if not lines[n].strip().startswith("#"))
            test = at_case.get(next(following, -1) + 1)
            source.marks.append(Mark(file, at, ids_of(mark[1]), test))
    for number, line in enumerate(lines[: docstring_end(tree)], 1):
        if mark := re.match(r"covers:([^\"]*)", line, re.IGNORECASE):
            test = Test(file, (file.stem,), "*", number) if all_cases else None
            source.marks.append(Mark(file, number, ids_of(mark[1]), test))
    return source


def docstring_end(tree: ast.Module) -> int:
    return tree.body[0].end_lineno or 0 if ast.get_docstring(tree) is not None else 0


def read_other(file: Path, text: str) -> Source:
    """No tests are read from other languages, so each line of theirs is one that no test follows."""
    lines = enumerate(text.splitlines(), 1)
    found = ((number, re.match(r"\s*//+\s*covers:(.*)", line, re.IGNORECASE)) for number, line in lines)
    return Source(marks=[Mark(file, number, ids_of(mark[1]), None) for number, mark in found if mark])


READERS = {".rs": read_rust, ".py": read_python, ".mjs": read_other, ".js": read_other, ".ts": read_other}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    files = (Path(name) for name in listed.split("\0") if name)
    return [file for file in files if file.suffix in READERS and file.is_file() and not file.is_symlink()]


def read_all(files: list[Path]) -> dict[Path, Source]:
    return {file: READERS[file.suffix](file, file.read_text()) for file in files}


def targets() -> list[Target]:
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    here = Path.cwd()
    return [
        Target(target["name"].replace("-", "_"), target["name"], Path(target["src_path"]).relative_to(here))
        for package in metadata["packages"]
        for target in package["targets"]
        if target["test"] and "bench" not in target["kind"]
    ]


def real(file: Path) -> Path:
    """The file that a link in the repository leads to."""
    return file.resolve().relative_to(Path.cwd().resolve())


Place = tuple[Target, tuple[str, ...]]


def mount(target: Target, sources: dict[Path, Source], places: dict[Path, list[Place]]) -> None:
    """Adds the modules of a target, by the rules of rustc for `mod name;` and `#[path]`."""
    todo: list[tuple[Path, tuple[str, ...], bool]] = [(target.root, (), True)]
    while todo:
        file, module, owns_folder = todo.pop()
        source = sources.get(real(file))
        if source is None:
            continue
        places.setdefault(real(file), []).append((target, module))
        for sub in source.submodules:
            folder = (file.parent if owns_folder else file.with_suffix("")).joinpath(*sub.module)
            alone = folder / f"{sub.name}.rs"
            if sub.path:
                found = normal((folder if sub.module else file.parent) / sub.path)
            else:
                found = alone if alone in sources else folder / sub.name / "mod.rs"
            todo.append((found, (*module, *sub.module, sub.name), found != alone))


def normal(path: Path) -> Path:
    """The path without `..`."""
    return Path(os.path.normpath(path))


@dataclass(frozen=True)
class Run:
    """A test as it is run: a function of a target, or a whole target that has no harness (`path` is empty)."""

    target: Target | None
    path: str


class Repository:
    """The sources, and where their tests are run."""

    def __init__(self, sources: dict[Path, Source], all_targets: list[Target]) -> None:
        self.sources = sources
        self.places: dict[Path, list[Place]] = {}
        for target in all_targets:
            mount(target, sources, self.places)
        self.runs: list[tuple[Run, Test]] = [
            (run, test) for source in sources.values() for test in source.tests for run in self.runs_of(test)
        ]

    def runs_of(self, test: Test) -> list[Run]:
        """Where a function or a module is run."""
        if test.file.suffix == ".py":
            program = self.sources.get(test.file.with_name("main.py"), Source())
            return [Run(None, "::".join([*test.module, test.name]))] if test.file.stem in program.imports else []
        places = self.places.get(test.file, [])
        return [Run(target, "::".join([*module, *test.module, test.name])) for target, module in places]

    def tests_of(self, run: Run) -> list[tuple[Run, Test]]:
        """The functions for which a run stands."""
        if not run.path.endswith("*"):
            return [(other, test) for other, test in self.runs if other == run]
        prefix = run.path.removesuffix("*")
        return [
            (other, test) for other, test in self.runs if other.target == run.target and other.path.startswith(prefix)
        ]

    def shown(self, test: Test) -> list[Run]:
        """Where a test is run; a module without tests is none, but a target without any is its program."""
        shown = []
        for run in self.runs_of(test):
            if run.path == "*" and run.target and not self.tests_of(run):
                shown.append(Run(run.target, ""))
            elif test.file.suffix == ".py" and test.is_module or self.tests_of(run):
                shown.append(run)
        return shown


def text_of(run: Run) -> str:
    return f"{run.target.label if run.target else SDK} {run.path}".strip()
