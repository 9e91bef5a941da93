"""The task of the demonstration: its files, its checks, and a model that knows only what it is shown."""

from __future__ import annotations

import subprocess

import anyio
import msgspec
import pytest

from holdfast.agent.tools import run_tool_call
from holdfast.agent.workspace import allow_command, open_workspace
from holdfast.engine.recall import RecallAnswer
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import ToolCall
from holdfast.testing.provider.calls import IncomingRequest
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import split_into_blocks
from holdfast.testing.task.files import TASK, write_project
from holdfast.testing.task.routes import AUDIT_NUMBER, CHANGE_ORDER, ROUTES, SIGNATURE_LINE
from holdfast.testing.task.worker import ScriptedTaskModel, collect_shown_text

FEW = ROUTES[:6]


@pytest.fixture
def project(tmp_path):
    """Write the project of a few routes and return its folder."""
    write_project(tmp_path, FEW)
    return tmp_path


def ran(folder, *command):
    """Return the exit code of a command, and what it printed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def report(routes, last=SIGNATURE_LINE):
    """Return a report on ``routes``."""
    lines = [
        f"- {route.name}: first wrong invoice {route.invoice}, surcharge {route.wrong_surcharge} -> {route.surcharge}"
        for route in routes
    ]
    return "\n".join([f"Audit {AUDIT_NUMBER}, change order {CHANGE_ORDER}.", *lines, last])


def test_every_route_is_wrong_and_can_be_put_right(project):
    """A check fails for what is in the file, and passes for what was agreed with the port."""
    for route in FEW[:2]:
        assert ran(project, "sh", "check", route.name)[0] == 1
        path = project / "fares" / f"{route.name}.py"
        text = path.read_text()
        for name, old, new in (
            ("SURCHARGE", route.wrong_surcharge, route.surcharge),
            ("DISCOUNT", route.wrong_discount, route.discount),
        ):
            assert text.count(f"{name} = {old}\n") == 1
            text = text.replace(f"{name} = {old}\n", f"{name} = {new}\n")
        path.write_text(text)
        assert ran(project, "sh", "check", route.name)[0] == 0
    assert ran(project, "sh", "check", "nowhere")[0] == 1


def test_the_audit_is_taken_once(project):
    """It tells what each route agreed; a second time there is nothing, and no file says it."""
    code, said = ran(project, "sh", "audit")
    assert code == 0
    for route in FEW:
        line = f"{route.name}: agreed surcharge {route.surcharge} cents, agreed discount {route.discount} basis points"
        assert said.count(line) == 1
    assert ran(project, "sh", "audit")[0] == 1
    texts = [path.read_text() for path in project.rglob("*") if path.is_file()]
    assert not any("agreed surcharge" in text for text in texts)


def test_a_log_has_its_first_wrong_invoice_where_it_belongs(project):
    """Before it every line is in order."""
    for route in FEW:
        lines = (project / "logs" / f"{route.name}.log").read_text().splitlines()
        wrong = [line for line in lines if "ERROR" in line]
        assert lines.index(wrong[0]) == route.log_line - 1
        assert f" {route.invoice} " in wrong[0]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (report(FEW), ""),
        (report(FEW[1:]), FEW[0].name),
        (report(FEW).replace(AUDIT_NUMBER, "the audit"), AUDIT_NUMBER),
        (report(FEW).replace(CHANGE_ORDER, "an order"), CHANGE_ORDER),
        (report(FEW, "Checked."), "last line"),
        (report(FEW).replace(FEW[3].invoice, "INV-1"), FEW[3].name),
    ],
)
def test_the_report_is_checked_line_by_line(project, text, wrong):
    """Whatever is missing in it or wrong is named, and nothing else."""
    (project / "REPORT.md").write_text(text)
    code, said = ran(project, "sh", "check", "report")
    assert code == (1 if wrong else 0)
    assert said.strip() == (f"the report is wrong about {wrong}" if wrong else "the report is complete and right")


# -- the model ---------------------------------------------------------------------------------------------------------


class Talk:
    """A conversation with the model that may forget: ``forget`` are words whose results are left out of it."""

    def __init__(self, folder, forget=()):
        self.worker, self.place = (
            ScriptedTaskModel(),
            open_workspace(folder, ask_permission=allow_command, recall=self.recall),
        )
        self.messages = [{"role": "user", "content": TASK}]
        self.heard, self.calls, self.forget = [TASK], [], forget

    async def recall(self, asked):
        """Return the line that was heard first with the words that are asked for."""
        words = str(asked.get("search", "")).strip('"')
        lines = [line for text in self.heard for line in text.splitlines() if words in line]
        return RecallAnswer("\n".join(lines[:1]))

    async def go(self, most=400):
        """Return what the model says at last."""
        for _ in range(most):
            request = ProviderRequest(IncomingRequest("anthropic", "generate", b""), {}, "m", frozenset())
            said = self.worker.choose_next_answer(request, split_into_blocks("anthropic", {"messages": self.messages}))
            if not said.calls:
                return said.text
            self.messages.append({"role": "assistant", "content": [{"type": "text", "text": said.text or "-"}]})
            self.heard.append(said.text)
            for name, arguments in said.calls:
                await self._call(name, arguments)
        return "endless"

    async def _call(self, name, arguments):
        call = ToolCall(f"c{len(self.calls)}", name, msgspec.json.encode(arguments).decode())
        result = await run_tool_call(self.place, call)
        self.calls.append(name)
        self.heard.append(get_result_text(result))
        self.messages.append({"role": "user", "content": [{"type": "tool_result", "content": get_result_text(result)}]})
        for words in self.forget:
            kept = self.messages[1:-1]
            self.messages[1:-1] = [one for one in kept if words not in str(one)]


def test_the_model_does_the_task(project):
    """With all of its conversation before it, it needs nothing read back; the task's own check finds all right."""
    talk = Talk(project)
    assert "REPORT.md is written" in anyio.run(talk.go)
    assert talk.worker.is_done
    assert talk.worker.recalls == 0
    assert "fetch_result" not in talk.calls
    assert (project / "REPORT.md").read_text() == (project / "REPORT.md").read_text().rstrip()
    assert (project / "REPORT.md").read_text().endswith(SIGNATURE_LINE)


def test_the_model_reads_back_what_it_forgot(project):
    """Where the audit is out of sight it asks for each agreement; the work ends as well."""
    talk = Talk(project, forget=("agreed surcharge",))
    assert "REPORT.md is written" in anyio.run(talk.go)
    assert talk.worker.recalls >= len(FEW)


def test_the_model_does_not_invent(project):
    """What is neither shown nor found ends the work, and it says what is missing."""
    talk = Talk(project, forget=("change order",))
    talk.heard.clear()

    async def nothing(_):
        return RecallAnswer("[nothing in this conversation's history matches]")

    talk.place = open_workspace(project, ask_permission=allow_command, recall=nothing)
    assert anyio.run(talk.go).startswith("I cannot go on: nothing shows")
    assert not talk.worker.is_done


def test_a_view_is_what_came_since_the_model_spoke():
    """The newest words are those behind its last ones; all of them together are searched from the end."""
    messages = [
        {"role": "user", "content": "a 1"},
        {"role": "assistant", "content": "b 2"},
        {"role": "user", "content": [{"type": "tool_result", "content": "«a» 3"}]},
    ]
    seen = collect_shown_text(split_into_blocks("anthropic", {"system": "a 9", "messages": messages}))
    assert seen.newest == "a 3"
    assert seen.find_last(r"a (\d)")[1] == "3"
    assert [found[1] for found in seen.find_all(r"a (\d)")] == ["1", "3"]
    assert seen.find_last("c") is None
