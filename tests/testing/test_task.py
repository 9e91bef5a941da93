"""The demonstration task: its files, its checks, and a scripted model that knows only the text it is shown."""

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

SOME_ROUTES = ROUTES[:6]


@pytest.fixture
def project(tmp_path):
    """Write the project of a few routes and return its folder."""
    write_project(tmp_path, SOME_ROUTES)
    return tmp_path


def run_command(folder, *command):
    """Run a command; return its exit code and its output."""
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return completed.returncode, completed.stdout + completed.stderr


def build_report(routes, last=SIGNATURE_LINE):
    """Return the text of a report on ``routes``."""
    lines = [
        f"- {route.name}: first wrong invoice {route.invoice}, surcharge {route.wrong_surcharge} -> {route.surcharge}"
        for route in routes
    ]
    return "\n".join([f"Audit {AUDIT_NUMBER}, change order {CHANGE_ORDER}.", *lines, last])


def test_route_check_fails_until_the_agreed_values_are_set(project):
    """Each route's file has wrong values, and its check passes with the agreed ones."""
    for route in SOME_ROUTES[:2]:
        assert run_command(project, "sh", "check", route.name)[0] == 1
        path = project / "fares" / f"{route.name}.py"
        text = path.read_text()
        for name, wrong, right in (
            ("SURCHARGE", route.wrong_surcharge, route.surcharge),
            ("DISCOUNT", route.wrong_discount, route.discount),
        ):
            assert text.count(f"{name} = {wrong}\n") == 1
            text = text.replace(f"{name} = {wrong}\n", f"{name} = {right}\n")
        path.write_text(text)
        assert run_command(project, "sh", "check", route.name)[0] == 0
    assert run_command(project, "sh", "check", "nowhere")[0] == 1


def test_audit_can_be_run_only_once(project):
    """It prints what each route agreed; a second run prints nothing, and no file contains it."""
    code, output = run_command(project, "sh", "audit")
    assert code == 0
    for route in SOME_ROUTES:
        line = f"{route.name}: agreed surcharge {route.surcharge} cents, agreed discount {route.discount} basis points"
        assert output.count(line) == 1
    assert run_command(project, "sh", "audit")[0] == 1
    texts = [path.read_text() for path in project.rglob("*") if path.is_file()]
    assert not any("agreed surcharge" in text for text in texts)


def test_route_log_has_its_first_wrong_invoice_at_the_given_line(project):
    """Every line before it is correct."""
    for route in SOME_ROUTES:
        lines = (project / "logs" / f"{route.name}.log").read_text().splitlines()
        wrong = [line for line in lines if "ERROR" in line]
        assert lines.index(wrong[0]) == route.log_line - 1
        assert f" {route.invoice} " in wrong[0]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (build_report(SOME_ROUTES), ""),
        (build_report(SOME_ROUTES[1:]), SOME_ROUTES[0].name),
        (build_report(SOME_ROUTES).replace(AUDIT_NUMBER, "the audit"), AUDIT_NUMBER),
        (build_report(SOME_ROUTES).replace(CHANGE_ORDER, "an order"), CHANGE_ORDER),
        (build_report(SOME_ROUTES, "Checked."), "last line"),
        (build_report(SOME_ROUTES).replace(SOME_ROUTES[3].invoice, "INV-1"), SOME_ROUTES[3].name),
    ],
)
def test_report_check_names_the_first_wrong_line(project, text, wrong):
    """The check names what is missing or wrong, and nothing else."""
    (project / "REPORT.md").write_text(text)
    code, output = run_command(project, "sh", "check", "report")
    assert code == (1 if wrong else 0)
    assert output.strip() == (f"the report is wrong about {wrong}" if wrong else "the report is complete and right")


# -- the model ---------------------------------------------------------------------------------------------------------


class Conversation:
    """A conversation with the scripted model; results that contain one of the ``forget`` texts are left out."""

    def __init__(self, folder, forget=()):
        self.worker, self.workspace = (
            ScriptedTaskModel(),
            open_workspace(folder, ask_permission=allow_command, recall=self.recall),
        )
        self.messages = [{"role": "user", "content": TASK}]
        self.texts, self.calls, self.forget = [TASK], [], forget

    async def recall(self, arguments):
        """Return the first line of the conversation that contains the searched text."""
        search = str(arguments.get("search", "")).strip('"')
        lines = [line for text in self.texts for line in text.splitlines() if search in line]
        return RecallAnswer("\n".join(lines[:1]))

    async def run(self, max_steps=400):
        """Run the model to its final text."""
        for _ in range(max_steps):
            request = ProviderRequest(IncomingRequest("anthropic", "generate", b""), {}, "m", frozenset())
            answer = self.worker.choose_next_answer(
                request, split_into_blocks("anthropic", {"messages": self.messages})
            )
            if not answer.calls:
                return answer.text
            self.messages.append({"role": "assistant", "content": [{"type": "text", "text": answer.text or "-"}]})
            self.texts.append(answer.text)
            for name, arguments in answer.calls:
                await self._call(name, arguments)
        return "endless"

    async def _call(self, name, arguments):
        call = ToolCall(f"c{len(self.calls)}", name, msgspec.json.encode(arguments).decode())
        result = await run_tool_call(self.workspace, call)
        self.calls.append(name)
        self.texts.append(get_result_text(result))
        self.messages.append({"role": "user", "content": [{"type": "tool_result", "content": get_result_text(result)}]})
        for forgotten in self.forget:
            kept = self.messages[1:-1]
            self.messages[1:-1] = [message for message in kept if forgotten not in str(message)]


def test_scripted_task_model_completes_the_task(project):
    """With the whole conversation in view the model recalls nothing, and the task's own check passes."""
    conversation = Conversation(project)
    assert "REPORT.md is written" in anyio.run(conversation.run)
    assert conversation.worker.is_done
    assert conversation.worker.recalls == 0
    assert "fetch_result" not in conversation.calls
    assert (project / "REPORT.md").read_text() == (project / "REPORT.md").read_text().rstrip()
    assert (project / "REPORT.md").read_text().endswith(SIGNATURE_LINE)


def test_scripted_task_model_recalls_what_it_no_longer_sees(project):
    """When the audit is out of view, the model recalls each agreement and completes the task."""
    conversation = Conversation(project, forget=("agreed surcharge",))
    assert "REPORT.md is written" in anyio.run(conversation.run)
    assert conversation.worker.recalls >= len(SOME_ROUTES)


def test_scripted_task_model_stops_when_a_fact_cannot_be_found(project):
    """A fact that is neither shown nor found ends the work, and the model says what is missing."""
    conversation = Conversation(project, forget=("change order",))
    conversation.texts.clear()

    async def find_nothing(_):
        return RecallAnswer("[nothing in this conversation's history matches]")

    conversation.workspace = open_workspace(project, ask_permission=allow_command, recall=find_nothing)
    assert anyio.run(conversation.run).startswith("I cannot go on: nothing shows")
    assert not conversation.worker.is_done


def test_collect_shown_text_separates_the_newest_text():
    """The newest text is what came after the model's last answer; searches cover all messages from the end."""
    messages = [
        {"role": "user", "content": "a 1"},
        {"role": "assistant", "content": "b 2"},
        {"role": "user", "content": [{"type": "tool_result", "content": "«a» 3"}]},
    ]
    shown = collect_shown_text(split_into_blocks("anthropic", {"system": "a 9", "messages": messages}))
    assert shown.newest == "a 3"
    assert shown.find_last(r"a (\d)")[1] == "3"
    assert [match[1] for match in shown.find_all(r"a (\d)")] == ["1", "3"]
    assert shown.find_last("c") is None
