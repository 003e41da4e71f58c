"""The audit log: calls done and denied. For users who may read its topic."""

from duolog import BadRequest

from duolog_server.ops.console.pages.lists import ROWS, Pages
from duolog_server.ops.console.view.addresses import AUDIT, address
from duolog_server.ops.console.view.formatting import command, counted, number
from duolog_server.ops.console.view.visits import Shown, Visit
from duolog_server.ops.inspection.auditlog import DECISIONS, AuditPage, AuditSearch, audit_page
from duolog_server.ops.inspection.times import BadTime, time_of

FIELDS = ("user", "action", "resource", "decision", "before")
UNKEPT = "The nodes keep no audit log in a topic: set audit.topic."


async def audit(visit: Visit) -> Shown:
    """The newest entries that match, and from there back in time."""
    fields = {name: visit.query.get(name, "").strip() for name in FIELDS}
    search = _search(fields, visit.query.get("from", ""))
    page = await audit_page(visit.client, search, ROWS)
    facts = {
        "sentence": _sentence(page, search),
        "rows": page.rows,
        "fields": fields,
        "decisions": DECISIONS,
        # A search looks at thousands of entries, and what is past does not change.
        "follows": not (search.filters or search.place or fields["before"]),
        "pages": Pages(
            first=address(AUDIT, dict(fields)) if search.place else "",
            next=address(AUDIT, {**fields, "from": page.next}) if page.next else "",
        ),
    }
    return Shown("audit.html", "Audit", facts, _command(fields, search.place))


def _search(fields: dict[str, str], place: str) -> AuditSearch:
    """Raises BadRequest."""
    decision, before = fields["decision"], fields["before"]
    if decision not in ("", *DECISIONS):
        raise BadRequest(f"{decision!r} is not one of {', '.join(DECISIONS)}")
    try:
        before_ms = time_of(before) if before else None
    except BadTime as error:
        raise BadRequest(str(error)) from None
    return AuditSearch(
        fields["user"], fields["action"], fields["resource"], decision, before_ms, place
    )


def _sentence(page: AuditPage, search: AuditSearch) -> str:
    if not page.kept:
        return UNKEPT
    which = "" if search.place or search.before_ms is not None else "newest "
    if not (page.rows or search.filters):
        return f"No {'earlier ' if not which else ''}entries."
    if not search.filters:
        return f"The {which}{counted(len(page.rows), 'entry')}."
    of = f"among the {which}{number(page.scanned)} looked at"
    return f"{counted(len(page.rows), 'entry')} found {of}."


def _command(fields: dict[str, str], place: str) -> str:
    flags = {"--by": fields["user"]}  # --user is the command's own user
    flags |= {f"--{name}": fields[name] for name in FIELDS[1:]} | {"--from": place}
    return command("audit", *(word for flag in flags.items() if flag[1] for word in flag))
