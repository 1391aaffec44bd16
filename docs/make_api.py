"""Write the API pages, docs/api/, from the docstrings: ``python docs/make_api.py``.

The sources are read, not imported: pages do not depend on which optional libraries are installed.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PAGES = (
    "paddle_ext",
    "paddle_ext.presence",
    "paddle_ext.integrations.sklearn",
    "paddle_ext.integrations.model_selection",
    "paddle_ext.integrations.easyfsl",
    "paddle_ext.app.classify",
    "paddle_ext.methods",
    "paddle_ext.research.tasks",
    "paddle_ext.research.data",
    "paddle_ext.research.backbones",
    "paddle_ext.research.evaluation",
    "paddle_ext.research.evaluation.tables",
    "paddle_ext.research.evaluation.figures",
    "paddle_ext.research.evaluation.experiments",
    "paddle_ext.reference",
)
UNLISTED = {  # modules without `__all__`
    "paddle_ext.integrations.sklearn": ["PaddleClassifier"],
    "paddle_ext.integrations.easyfsl": ["PADDLE"],
    "paddle_ext.research.evaluation.tables": ["TITLES", "markdown", "rows"],
    "paddle_ext.research.evaluation.figures": [
        "ablation",
        "accuracy_against_k_eff",
        "accuracy_against_lambda",
        "accuracy_bars",
        "best_lambda_against_queries",
        "criterion_against_time",
        "label_cost",
    ],
}
SECTIONS = ("Parameters", "Attributes", "Returns", "Raises", "Notes", "Examples")
# Blocks of code stay as the docstrings have them, whatever a formatter would make of them here.
FORMATTED = "<!-- fmt: off -->"
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Entry:
    """A public name: where it is defined, and how."""

    name: str
    source: Path
    node: Definition


# --- finding names --------------------------------------------------------------------------------


def source_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def public_names(module: str) -> list[str]:
    """Those of `__all__`, or of the list above."""
    if module in UNLISTED:
        return UNLISTED[module]
    for node in ast.parse(source_of(module).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
    raise LookupError(f"{module} must have __all__, or its public names be listed in {__file__}")


def find(module: str, name: str) -> Entry | None:
    """Where a name comes from, through imports; None for a module."""
    path = source_of(module)
    for node in statements(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return Entry(name, path, node)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return Entry(name, path, node)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            return Entry(name, path, node)
        if isinstance(node, ast.ImportFrom) and name in (alias.name for alias in node.names):
            return None if node.module is None else find(imported(module, node), name)
    raise LookupError(f"{module} must define {name!r}, which it lists as public")


def statements(path: Path) -> Iterator[ast.stmt]:
    """Those of a module, and what it imports for type checkers alone."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from node.body
        else:
            yield node


def imported(module: str, node: ast.ImportFrom) -> str:
    """The whole name of the module that is imported from."""
    parts = module.split(".")
    up = node.level - (source_of(module).name == "__init__.py")
    return ".".join([*parts[: len(parts) - up], node.module or ""])


def contents() -> dict[str, list[Entry]]:
    """The names of each page; one that several modules export is on the page of the deepest."""
    found = {
        page: [entry for name in public_names(page) if (entry := find(page, name))]
        for page in PAGES
    }
    first = found["paddle_ext"]
    # What the package exports of its parts is told on their pages, but for the functions over the
    # native code, which have no other, and the results that these return.
    elsewhere = {
        (entry.source, entry.name)
        for page, entries in found.items()
        if page not in ("paddle_ext", "paddle_ext.reference")
        for entry in entries
    }
    found["paddle_ext"] = [e for e in first if (e.source, e.name) not in elsewhere]
    told = {(entry.source, entry.name) for entry in found["paddle_ext"]}
    reference = found["paddle_ext.reference"]
    found["paddle_ext.reference"] = [e for e in reference if (e.source, e.name) not in told]
    return found


# --- signatures -----------------------------------------------------------------------------------


def signature(node: ast.FunctionDef, name: str, method: bool) -> str:
    """A call as it is written, one argument a line where it is long."""
    arguments = list(parameters(node.args))[1 if method else 0 :]
    result = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    text = ", ".join(arguments)
    if len(name) + len(text) + len(result) + 2 <= 88:
        return f"{name}({text}){result}"
    lines = "".join(f"    {each},\n" for each in arguments)
    return f"{name}(\n{lines}){result}"


def parameters(found: ast.arguments) -> Iterator[str]:
    """Each parameter as the house style writes it: `ast.unparse` leaves no room around a =."""
    plain = [*found.posonlyargs, *found.args]
    for argument, default in zip(plain, padded(found.defaults, len(plain)), strict=True):
        yield parameter(argument, default)
    if found.vararg:
        yield f"*{parameter(found.vararg, None)}"
    elif found.kwonlyargs:
        yield "*"
    for argument, default in zip(found.kwonlyargs, found.kw_defaults, strict=True):
        yield parameter(argument, default)
    if found.kwarg:
        yield f"**{parameter(found.kwarg, None)}"


def padded(defaults: list[ast.expr], count: int) -> list[ast.expr | None]:
    return [*[None] * (count - len(defaults)), *defaults]


def parameter(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{kind}" + (f" = {literal(default)}" if default else "")


def literal(value: ast.expr) -> str:
    """A default as people write it: "auto", 1e-6."""
    text = ast.unparse(value)
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return f'"{value.value}"'
    return re.sub(r"e-0(\d)$", r"e-\1", text)


def fields(entry: Entry) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and comment of each field of a dataclass or a named tuple."""
    lines = entry.source.read_text().splitlines()
    body = entry.node.body if isinstance(entry.node, ast.ClassDef) else []
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or "ClassVar" in ast.unparse(node.annotation):
            continue
        end = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :]
        comment = end.partition("#")[2].strip()
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            comment = str(after.value.value)
        default = literal(node.value) if node.value else ""
        yield ast.unparse(node.target), ast.unparse(node.annotation), default, comment


def is_record(node: ast.ClassDef) -> bool:
    named = [ast.unparse(each) for each in (*node.bases, *node.decorator_list)]
    return any(name == "NamedTuple" or name.startswith("dataclass") for name in named)


# --- Markdown -------------------------------------------------------------------------------------


def sections(docstring: str) -> Iterator[tuple[str, str]]:
    """The parts of a numpydoc docstring; what comes first has no title."""
    parts = re.split(rf"^({'|'.join(SECTIONS)})\n-+\n", docstring, flags=re.MULTILINE)
    yield "", parts[0].strip()
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        yield title, text.strip("\n")


def prose(text: str) -> str:
    """Paragraphs; a line that ends in :: announces code."""
    return re.sub(r"::$", ":", text, flags=re.MULTILINE).replace("``", "`")


def entries(text: str) -> str:
    """The list of parameters, results or errors of a section."""
    items = []
    for part in re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]:
        first, *rest = part.splitlines()
        name, _, kind = first.partition(" : ")
        inner = textwrap.dedent("\n".join(rest)).strip("\n")
        head = f"- **`{name}`**" + (f" : {kind}" if kind else "")
        if re.match(r"\w+ : ", inner):  # the fields of a result
            items.append(f"{head}\n{textwrap.indent(entries(inner), '  ')}")
        else:
            items.append(head + (f"  \n  {prose(' '.join(inner.split()))}" if inner else ""))
    return "\n".join(items)


def markdown(docstring: str | None) -> str:
    """A docstring as Markdown."""
    found = []
    for title, text in sections(docstring or ""):
        if title in ("Parameters", "Attributes", "Returns", "Raises"):
            found.append(f"**{title}**\n\n{entries(text)}")
        elif title == "Examples":
            found.append(f"**{title}**\n\n{examples(text)}")
        elif text:
            found.append((f"**{title}**\n\n" if title else "") + prose(text))
    return "\n\n".join(found)


def examples(text: str) -> str:
    """Sessions become blocks of code, words between them stay words."""
    parts = [part.strip("\n") for part in re.split(r"\n\n", text)]
    plain = [re.sub(r" +# doctest: .*$", "", part, flags=re.MULTILINE) for part in parts]
    return "\n\n".join(
        f"```pycon\n{part}\n```" if part.startswith(">>>") else prose(part) for part in plain
    )


def block(code: str) -> str:
    # Not "python": the tests run such blocks, and a signature is no program.
    return f"```py\n{code}\n```"


def render(entry: Entry, page: Path) -> str:
    """All about one name."""
    up = "../" * len(page.relative_to(ROOT).parent.parts)
    source = entry.source.relative_to(ROOT).as_posix()
    node = entry.node
    parts = [f"## {entry.name}", f"[{source}]({up}{source})"]
    if isinstance(node, ast.FunctionDef):
        parts += [block(signature(node, entry.name, False)), markdown(ast.get_docstring(node))]
    elif isinstance(node, ast.ClassDef):
        parts += render_class(entry, node)
    else:
        parts.append(block(constant(entry)))
    return "\n\n".join(part for part in parts if part)


def constant(entry: Entry) -> str:
    """As the source has it, or only its name where it is long."""
    text = ast.get_source_segment(entry.source.read_text(), entry.node) or ""
    return text if text.count("\n") < 20 else text.partition(" = ")[0] + " = ..."


def render_class(entry: Entry, node: ast.ClassDef) -> Iterator[str]:
    """The constructor, the docstring, and the public methods."""
    documented = markdown(ast.get_docstring(node))
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    made = [each for each in methods if each.name == "__init__"]
    if made:
        yield block(signature(made[0], entry.name, True))
    yield documented
    if is_record(node) and "**Parameters**" not in documented:
        rows = [
            [f"`{name}`", f"`{kind}`" + (f" = `{value}`" if value else ""), prose(comment)]
            for name, kind, value, comment in fields(entry)
        ]
        yield table(["field", "type", ""], rows)
    for method in methods:
        if method.name.startswith("_"):
            continue
        wrapped = [ast.unparse(each) for each in method.decorator_list]
        if "property" in wrapped or "cached_property" in wrapped:
            kind = f" : `{ast.unparse(method.returns)}`" if method.returns else ""
            yield f"### {entry.name}.{method.name}{kind}"
        else:
            yield f"### {entry.name}.{method.name}"
            yield block(signature(method, method.name, "staticmethod" not in wrapped))
        yield markdown(ast.get_docstring(method))


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header)]
    lines += [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def anchors(names: list[str]) -> list[str]:
    """Of headings, as Markdown viewers make them: the second of the same letters gets a number."""
    found: list[str] = []
    for name in names:
        before = sum(anchor == name.lower() for anchor in found)
        found.append(name.lower() + (f"-{before}" if before else ""))
    return found


def file_name(module: str) -> str:
    return module.removeprefix("paddle_ext.").replace(".", "-") + ".md"


def pages() -> dict[Path, str]:
    """The text of every page."""
    found: dict[Path, str] = {}
    index: list[list[str]] = []
    for module, listed in contents().items():
        path = HERE / "api" / file_name(module)
        docstring = ast.get_docstring(ast.parse(source_of(module).read_text())) or ""
        about = [FORMATTED, f"# {module}", prose(docstring), "[All modules](README.md)"]
        told = [render(entry, path) for entry in listed]
        found[path] = "\n\n".join([*about, *told]) + "\n"
        names = [entry.name for entry in listed]
        links = zip(names, anchors(names), strict=True)
        linked = ", ".join(f"[`{name}`]({path.name}#{anchor})" for name, anchor in links)
        index.append([f"[{module}]({path.name})", linked])
    head = "# API\n\nWritten by `python docs/make_api.py` from the docstrings.\n\n"
    found[HERE / "api" / "README.md"] = head + table(["module", ""], index) + "\n"
    return found


def main() -> None:
    """Write them, and remove pages of modules that are gone."""
    written = pages()
    (HERE / "api").mkdir(exist_ok=True)
    for path in set((HERE / "api").glob("*.md")) - set(written):
        path.unlink()
    for path, text in written.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
