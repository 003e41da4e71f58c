"""Mechanical mutants: single changes of a function's syntax tree, each with a stable name.

| kind | changes |
|------|---------|
| boundary | `<` to `<=`, `>=` to `>`, and back |
| opposite | a comparison or a condition to its contrary, `and` to `or`, True to False |
| number | an integer to the next one |
| sum | `+` to `-`, `min` to `max`, and back |
| drop | a call, an assignment to an attribute, a raise or a guard is left out |
| swap | two neighbouring effects change places, unless neither can know of the other |

A mutant's name says file, function and kind, and ends with a digest of what it changes where, so it
stays the same while other code moves. Code that only reports (texts of errors, lines of the log) is
left as it is.
"""

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

_BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}
BODIES = ("body", "orelse", "finalbody")  # the lists of statements that a node has
_EXTREMES = {"min": "max", "max": "min"}
# Code that only reports: a change has no effect that a test should see.
_SILENT = (ast.Assert, ast.JoinedStr, ast.Raise, ast.arguments)
Change = Callable[[ast.AST], None]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mechanical:
    """One mutant. place: which node of the function, in the order of the walk."""

    name: str
    path: str
    function: str
    line: int
    end: int  # the last line of what is changed
    place: int
    change: int
    before: str
    after: str

    def diff(self) -> str:
        """The change as a diff."""
        return f"--- {self.path}:{self.line} {self.function}\n-{self.before}\n+{self.after}"


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """The functions of a module and the methods of its classes, by qualified name."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, Function) and inner.name not in ("__str__", "__repr__"):
                    yield f"{node.name}.{inner.name}", inner


def mutants(path: str, source: str, wanted: Callable[[str], bool]) -> list[Mechanical]:
    """All mutants of the wanted functions of a file."""
    found: list[Mechanical] = []
    for function, node in functions(ast.parse(source)):
        if wanted(function):
            found += _of_function(path, function, node)
    return found


def mutated(mutant: Mechanical, source: str) -> CodeType:
    """The compiled function with the change in it."""
    tree = alone(source, mutant.function)
    function = dict(functions(tree))[mutant.function]
    node = _places(function)[mutant.place]
    closure = code_of(tree, mutant.path, mutant.function).co_freevars
    _changes(node, _makes(mutant.function))[mutant.change][1](node)
    # The code replaces that of a function whose closure stays: a call of super() that is left out
    # would leave no name for the cell of the class.
    function.body += [ast.Expr(ast.Name(name, ast.Load())) for name in closure]
    return code_of(tree, mutant.path, mutant.function)


def alone(source: str, function: str) -> ast.Module:
    """A function of a module, with its class and without the rest: a tree that may be changed."""
    owner, _, name = function.rpartition(".")
    kept: list[ast.stmt] = []
    for node in _named(_parsed(source).body, owner or name):
        if isinstance(node, ast.ClassDef):
            node = copy.copy(node)
            node.body = _named(node.body, name)
        kept.append(node)
    return copy.deepcopy(ast.Module(kept, []))


@lru_cache(maxsize=1)  # functions of a file follow each other
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _named(body: list[ast.stmt], name: str) -> list[ast.stmt]:
    return [node for node in body if getattr(node, "name", "") == name]


def code_of(tree: ast.Module, path: str, function: str) -> CodeType:
    """A function of a changed module, compiled."""
    return _find(compile(ast.fix_missing_locations(tree), path, "exec"), function)


def _find(code: CodeType, function: str) -> CodeType:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_qualname == function:
                return inner
            if function.startswith(inner.co_qualname + "."):
                return _find(inner, function)
    raise LookupError(function)


def _of_function(path: str, function: str, node: Function) -> list[Mechanical]:
    found: list[Mechanical] = []
    same: Counter[str] = Counter()
    for place, part in enumerate(_places(node)):
        if not (changes := _changes(part, _makes(function))):
            continue
        rows = ast.unparse(part).splitlines()
        for number, (kind, change) in enumerate(changes):
            changed = copy.copy(part)
            for field in BODIES:
                if isinstance(body := getattr(part, field, None), list):
                    setattr(changed, field, body.copy())  # a change puts others into a body
            change(changed)
            before, after = _texts(rows, ast.unparse(changed).splitlines())
            if before == after:
                continue
            key = f"{function} {kind} {before} {after}"
            same[key] += 1
            digest = hashlib.sha1(f"{key} {same[key]}".encode()).hexdigest()[:8]
            name = f"{path}:{function}:{kind}:{digest}"
            line = getattr(part, "lineno", node.lineno)
            end = getattr(part, "end_lineno", None) or line
            found.append(Mechanical(name, path, function, line, end, place, number, before, after))
    return found


def _texts(*rows: list[str]) -> tuple[str, str]:
    """The lines that differ, of two texts."""
    low = 0
    while low < min(map(len, rows)) and rows[0][low] == rows[1][low]:
        low += 1
    ends = [len(row) for row in rows]
    while min(ends) > low and rows[0][ends[0] - 1] == rows[1][ends[1] - 1]:
        ends = [end - 1 for end in ends]
    first, second = ("\n".join(row[low:end]) for row, end in zip(rows, ends, strict=True))
    return first, second or "(left out)"


def _places(function: Function) -> list[ast.AST]:
    """The nodes of a function that may be changed, in a fixed order."""
    found: list[ast.AST] = []

    def visit(node: ast.AST) -> None:
        found.append(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "pattern"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_silent(child):
                    visit(child)

    visit(function)
    return found


def _is_silent(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return True
    return isinstance(node, _SILENT)


def _makes(function: str) -> bool:
    """Whether it makes an object, which nobody else knows yet."""
    return function.endswith(".__init__")


def _changes(node: ast.AST, fresh: bool) -> list[tuple[str, Change]]:
    """What can be changed in one node. fresh: in the making of an object."""
    found: list[tuple[str, Change]] = []
    match node:
        case ast.Compare(ops=[op]):
            for kind, table in (("boundary", _BOUNDARY), ("opposite", _OPPOSITE)):
                if type(op) in table:
                    found.append((kind, _set("ops", [table[type(op)]()])))
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            found.append(("opposite", _set("op", other)))
        case ast.Constant(value=bool() as truth):
            found.append(("opposite", _set("value", not truth)))
        case ast.Constant(value=int() as number):
            found.append(("number", _set("value", number + 1)))
        case ast.BinOp(op=ast.Add()):
            found.append(("sum", _set("op", ast.Sub())))
        case ast.BinOp(op=ast.Sub()):
            found.append(("sum", _set("op", ast.Add())))
        case ast.Call(func=ast.Name(id=name)) if name in _EXTREMES:
            found.append(("sum", _set("func", ast.Name(_EXTREMES[name], ast.Load()))))
    if isinstance(node, ast.If | ast.IfExp) and not isinstance(node.test, ast.Compare):
        found.append(("opposite", _set("test", _contrary(node.test))))
    for field in BODIES:
        body = getattr(node, field, None)
        if isinstance(body, list):
            found += _of_body(field, body, fresh)
    return found


def _of_body(field: str, body: list[ast.stmt], fresh: bool) -> Iterator[tuple[str, Change]]:
    for at, statement in enumerate(body):
        if _is_effect(statement) or _is_guard(statement) or isinstance(statement, ast.Raise):
            yield "drop", _drop(field, at)
        if at and _may_depend(body[at - 1], statement, fresh):
            yield "swap", _swap(field, at)


def _is_effect(statement: ast.stmt) -> bool:
    if _is_silent(statement):
        return False
    match statement:
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())) | ast.AugAssign():
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
    return False


def _may_depend(one: ast.stmt, other: ast.stmt, fresh: bool) -> bool:
    """Two effects, of which one may see whether the other comes first."""
    if not (_is_effect(one) and _is_effect(other)):
        return False
    first, second = _set_alone(one, fresh), _set_alone(other, fresh)
    if first is None or second is None:
        return True
    (name, reads), (other_name, other_reads) = first, second
    return name == other_name or name in other_reads or other_name in reads


def _set_alone(statement: ast.stmt, fresh: bool) -> tuple[str, set[str]] | None:
    """The attribute that gets a value, and the owner's attributes that the value is made of; None
    for any other statement, and where the value may be made of more.
    """
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=name)], value=value):
            reads = _read_of(owner, value, fresh)
            return None if reads is None else (name, reads)
    return None


def _read_of(owner: str, value: ast.expr, fresh: bool) -> set[str] | None:
    """The attributes of an owner in an expression; None where it calls a method, or reads more. Of
    others these may read nothing of an owner that is fresh, unless it is given to them.
    """
    found: set[str] = set()
    told = 0  # of the names of the owner, those of which an attribute is read
    for node in ast.walk(value):
        match node:
            case ast.Await() | ast.Yield() | ast.NamedExpr():
                return None
            case ast.Call(func=ast.Attribute(value=called)) if not fresh or _names(called, owner):
                return None
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == owner:
                found.add(attribute)
                told += 1
            case ast.Attribute(value=ast.Name()) if not fresh:
                return None
    return found if _names(value, owner) == told else None


def _names(value: ast.expr, owner: str) -> int:
    """How often an expression names an owner."""
    return sum(isinstance(node, ast.Name) and node.id == owner for node in ast.walk(value))


def _is_guard(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and isinstance(statement.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
    )


def _contrary(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _set(field: str, value: object) -> Change:
    return lambda node: setattr(node, field, value)


def _drop(field: str, at: int) -> Change:
    def change(node: ast.AST) -> None:
        body = getattr(node, field)
        body[at : at + 1] = [] if len(body) > 1 else [ast.Pass()]

    return change


def _swap(field: str, at: int) -> Change:
    def change(node: ast.AST) -> None:
        body = getattr(node, field)
        body[at - 1], body[at] = body[at], body[at - 1]

    return change
