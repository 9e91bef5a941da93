"""How clients are started: the proxy's address reaches each of them, their own address stays the upstream."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.cli.clients.client_settings import (
    SETTINGS_READERS,
    ClientEnvironment,
    find_configured_urls,
    list_settings_files,
    parse_lenient_json,
)
from holdfast.cli.clients.launch import (
    CHATGPT_CODEX_URL,
    CLIENT_LAUNCHERS,
    LITELLM_GATEWAYS,
    LaunchRequest,
    get_command_client,
    list_launch_files,
    list_opencode_files,
    plan_launch,
)
from holdfast.config.providers import ADDRESS_VARIABLES, PROVIDERS
from holdfast.proxy.http.routes import build_upstream_url, parse_route

PROXY = "http://127.0.0.1:4141"
GATEWAY = "https://gateway.example/team/v1"
LED = f"{PROXY}/u/{GATEWAY}"
HOME, FOLDER = "/home/user", "/home/user/project"


def place(environment=None, **texts):
    """Return a place whose files are told by the ends of their paths, with strokes as double underscores."""
    return ClientEnvironment(
        environment or {}, HOME, FOLDER, {name.replace("__", "/"): text for name, text in texts.items()}
    )


def at(client, text, environment=None):
    """Return a place where the weakest file of ``client`` says ``text``."""
    bare = place(environment)
    return ClientEnvironment(bare.environment, HOME, FOLDER, {list_settings_files(client, bare)[0]: text})


def order(where=None, *arguments, **more):
    return LaunchRequest(PROXY, where or place(), arguments, "/tmp/holdfast-1", **more)


def options(made):
    """Return the values of ``-c`` by their keys."""
    return dict(value.split("=", 1) for flag, value in pairwise(made.arguments) if flag == "-c")


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "led"),
    [
        ("https://api.anthropic.com", PROXY),
        ("https://api.openai.com/v1", f"{PROXY}/v1"),
        ("https://generativelanguage.googleapis.com/v1beta", f"{PROXY}/v1beta"),
        ("https://api.openai.com.example/v1", f"{PROXY}/u/https://api.openai.com.example/v1"),
        (GATEWAY, LED),
        (LED, LED),
        (PROXY, PROXY),
        (f"{PROXY}0/v1", f"{PROXY}/u/{PROXY}0/v1"),
    ],
)
def test_an_address_through_the_proxy(url, led):
    """A maker's own address needs not be named, any other one is, and none is named twice."""
    assert order().make_proxied_url(url) == led


@given(
    host=st.from_regex(r"[a-z]{1,8}(\.[a-z]{2,5}){0,2}(:[1-9][0-9]{0,3})?", fullmatch=True),
    path=st.from_regex(r"(/[a-z0-9-]{1,6}){0,3}", fullmatch=True),
    asked=st.sampled_from(["/messages", "/chat/completions", "/responses", "/models/m:generateContent"]),
)
def test_an_upstream_is_asked_as_before(host, path, asked):
    """For every address: what a client adds to the one it is given reaches the one it had, letter by letter."""
    own = f"https://{host}{path}"
    found = parse_route("POST", order().make_proxied_url(own).removeprefix(PROXY) + asked)
    assert build_upstream_url("http://elsewhere.example", found) == own + asked


@pytest.mark.parametrize(
    ("command", "client"),
    [("claude", "claude"), ("/opt/bin/codex", "codex"), (r"C:\npm\opencode.cmd", "opencode"), ("Pi.exe", "pi")],
)
def test_what_a_program_is_called(command, client):
    """A client is known by the name of its program, wherever that is."""
    assert get_command_client(command) == client


# -- variables ---------------------------------------------------------------------------------------------------------


def test_any_program_has_the_variables_of_the_sdks():
    """A program that is not known is pointed at the proxy by all variables, with what each wants behind it."""
    assert dict(plan_launch("python", order()).environment) == {
        "ANTHROPIC_BASE_URL": PROXY,
        "OPENAI_BASE_URL": f"{PROXY}/v1",
        "OPENAI_API_BASE": f"{PROXY}/v1",
        "GOOGLE_GEMINI_BASE_URL": PROXY,
        "GEMINI_API_BASE": f"{PROXY}/v1beta",
        **{name: f"{PROXY}/u/{url}" for name, url in LITELLM_GATEWAYS.items()},
    }


@pytest.mark.parametrize("name", [*ADDRESS_VARIABLES, *LITELLM_GATEWAYS])
def test_a_variable_of_the_user_stays_the_upstream(name):
    """What a variable leads to is led to through the proxy."""
    assert plan_launch("python", order(place({name: GATEWAY}))).environment[name] == LED


def test_variables_that_mean_the_same():
    """Where one of two variables is set, both lead there."""
    made = plan_launch("python", order(place({"OPENAI_API_BASE": GATEWAY, "ANTHROPIC_API_URL": GATEWAY}))).environment
    assert made["OPENAI_BASE_URL"] == made["OPENAI_API_BASE"] == made["ANTHROPIC_BASE_URL"] == LED
    assert made["ANTHROPIC_API_URL"] == LED


def test_an_upstream_that_was_asked_for_stands_above_variables():
    """What the command line or a file names as upstream is where requests go, whatever the variables say."""
    said = dict.fromkeys(ADDRESS_VARIABLES, GATEWAY)
    for client, name in (("claude", "ANTHROPIC_BASE_URL"), ("python", "ANTHROPIC_API_URL")):
        assert (
            plan_launch(client, order(place(said), explicit_upstreams=frozenset({"anthropic"}))).environment[name]
            == PROXY
        )
    assert (
        plan_launch("python", order(place(said), explicit_upstreams=frozenset({"anthropic"}))).environment[
            "OPENAI_BASE_URL"
        ]
        == LED
    )


@pytest.mark.parametrize("client", [*CLIENT_LAUNCHERS, "python"])
def test_a_proxy_of_the_network_is_not_asked_for_ours(client):
    """Where a variable names a proxy of the network, this machine is excepted from it, beside what was."""
    made = plan_launch(
        client, order(place({"https_proxy": "", "HTTP_PROXY": "http://proxy:3128", "no_proxy": "intern"}))
    )
    assert made.environment["NO_PROXY"] == made.environment["no_proxy"] == "intern,127.0.0.1,localhost"
    assert "NO_PROXY" not in plan_launch(client, order()).environment


@pytest.mark.parametrize("client", CLIENT_LAUNCHERS)
def test_broken_settings_are_the_clients_own_affair(client):
    """Files that cannot be read as what they should be name no address and stop nothing."""
    for text in ("", "{", "[[[", '{"env": 3, "provider": [], "providers": {"x": null}}', "\x00\xff", "- - -\n: :"):
        texts = dict.fromkeys(list_launch_files(client, place()), text)
        plan_launch(client, order(ClientEnvironment({}, HOME, FOLDER, texts)))


# -- Claude Code -------------------------------------------------------------------------------------------------------


def test_claude():
    """Claude Code has its variable and nothing else."""
    made = plan_launch("claude", order(None, "-p", "hi"))
    assert (made.arguments, dict(made.environment), made.files) == ((), {"ANTHROPIC_BASE_URL": PROXY}, {})


def test_claude_whose_settings_name_an_address():
    """Settings stand above variables, so settings of ours stand above them, and their address is the upstream."""
    told = json.dumps({"env": {"ANTHROPIC_BASE_URL": GATEWAY}})
    made = plan_launch("claude", order(at("claude", told, {"ANTHROPIC_BASE_URL": "http://weaker.example"})))
    assert made.arguments == ("--settings", json.dumps({"env": {"ANTHROPIC_BASE_URL": LED}}, separators=(",", ":")))
    both = plan_launch("claude", order(at("claude", told), "--settings=mine.json"))
    assert both.arguments == ()
    assert "remove" in both.notes[0]


@pytest.mark.parametrize("name", ["settings.json", "settings.local.json"])
def test_claude_in_a_folder_that_names_an_address(name):
    """Nobody is led where a folder says, which may have been fetched; it is told, and how it goes through the proxy."""
    path = f"{FOLDER}/.claude/{name}"
    told = json.dumps({"env": {"ANTHROPIC_BASE_URL": GATEWAY}})
    there = ClientEnvironment({}, HOME, FOLDER, {path: told})
    assert path in list_launch_files("claude", there)
    made = plan_launch("claude", order(there))
    assert (made.arguments, dict(made.environment)) == ((), {"ANTHROPIC_BASE_URL": PROXY})
    assert made.notes[0].startswith(f"{path} sets ANTHROPIC_BASE_URL")
    assert f"--upstream-anthropic {GATEWAY}" in made.notes[0]
    asked = plan_launch("claude", replace(order(there), explicit_upstreams=frozenset({"anthropic"})))
    assert asked.arguments == ("--settings", json.dumps({"env": {"ANTHROPIC_BASE_URL": PROXY}}, separators=(",", ":")))
    assert asked.notes == ()
    own = ClientEnvironment(
        {}, HOME, FOLDER, {f"{HOME}/.claude/settings.json": told.replace("://", "://own."), path: told}
    )
    assert "own." in plan_launch("claude", order(own)).arguments[1]


def test_claude_in_a_cloud():
    """What goes past the proxy is said."""
    assert "BEDROCK" in plan_launch("claude", order(place({"CLAUDE_CODE_USE_BEDROCK": "1"}))).notes[0]


# -- Codex -------------------------------------------------------------------------------------------------------------


def test_codex():
    """Codex has options before its own arguments: its own provider, and each one of the user's."""
    text = f'[model_providers.mine]\nbase_url = "{GATEWAY}"\n[model_providers."a.b"]\nbase_url = "{GATEWAY}"\n'
    made = plan_launch("codex", order(at("codex", text), "exec"))
    assert options(made) == {
        "openai_base_url": f'"{PROXY}/v1"',
        "model_providers.mine.base_url": f'"{LED}"',
    }
    assert "a.b" in made.notes[0]
    assert not made.environment


def test_codex_with_an_address_or_a_login():
    """The address of its settings, or of ChatGPT where it is logged in there, is the upstream."""
    assert (
        options(plan_launch("codex", order(is_chatgpt=True)))["openai_base_url"] == f'"{PROXY}/u/{CHATGPT_CODEX_URL}"'
    )
    told = at("codex", f'openai_base_url = "{GATEWAY}"')
    assert options(plan_launch("codex", order(told, is_chatgpt=True)))["openai_base_url"] == f'"{LED}"'
    assert "--oss" in plan_launch("codex", order(None, "--oss")).notes[0]


# -- opencode ----------------------------------------------------------------------------------------------------------


def addresses(made):
    said = json.loads(made.environment["OPENCODE_CONFIG_CONTENT"])
    return {name: one["options"]["baseURL"] for name, one in said.get("provider", {}).items()}


def test_opencode_has_addresses_of_what_can_be_used():
    """Providers of the configuration, with a key or with a login are led through; no other one is offered.

    Where there are none it says what goes past the proxy, and how there would be one.
    """
    where = place({"ANTHROPIC_API_KEY": "k"})
    logins, listed = list_opencode_files(where)
    texts = {
        list_settings_files("opencode", where)[
            1
        ]: f'{{"provider": {{"mine": {{"options": {{"baseURL": "{GATEWAY}"}}}},}}}} // mine',
        logins: '{"groq": {"type": "api", "key": "secret"}, "bedrock": {}}',
        listed: json.dumps(
            {"groq": {"api": "https://groq.example/v1"}, "xai": {"api": GATEWAY, "env": ["XAI_API_KEY"]}}
        ),
    }
    made = plan_launch("opencode", order(ClientEnvironment(where.environment, HOME, FOLDER, texts)))
    assert addresses(made) == {
        "anthropic": f"{PROXY}/v1",
        "mine": LED,
        "groq": f"{PROXY}/u/https://groq.example/v1",
    }
    assert "secret" not in str(made)
    (note,) = plan_launch("opencode", order(place({}))).notes
    assert (made.notes, "bypass the proxy; run opencode auth login" in note) == ((), True)


def test_opencode_has_a_key_in_its_configuration():
    """A provider that a configuration names is led through by its usual address: its key may stand in there."""
    said = {"OPENCODE_CONFIG_CONTENT": '{"provider": {"openai": {"options": {"timeout": 9}}}}'}
    texts = {f"{FOLDER}/opencode.json": '{"provider": {"google": {"options": {"apiKey": "secret"}}, "strange": {}}}'}
    made = plan_launch("opencode", order(ClientEnvironment(said, HOME, FOLDER, texts)))
    told = json.loads(made.environment["OPENCODE_CONFIG_CONTENT"])["provider"]
    assert told == {
        "openai": {"options": {"timeout": 9, "baseURL": f"{PROXY}/v1"}},
        "google": {"options": {"baseURL": f"{PROXY}/v1beta"}},
    }
    assert made.notes == ()


def test_opencode_keeps_what_was_said_in_the_variable():
    """A configuration in the variable stays as it is, but for its addresses; the project's is above the user's."""
    given = {"model": "mine/m", "provider": {"mine": {"options": {"baseURL": GATEWAY, "apiKey": "k"}, "npm": "x"}}}
    where = place({"OPENCODE_CONFIG_CONTENT": json.dumps(given)})
    said = json.loads(plan_launch("opencode", order(where)).environment["OPENCODE_CONFIG_CONTENT"])
    given["provider"]["mine"]["options"]["baseURL"] = LED
    assert said == given
    texts = {
        f"{HOME}/.config/opencode/opencode.json": '{"provider": {"p": {"options": {"baseURL": "http://weaker"}}}}',
        f"{FOLDER}/opencode.json": f'{{"provider": {{"p": {{"options": {{"baseURL": "{GATEWAY}"}}}}}}}}',
    }
    assert addresses(plan_launch("opencode", order(ClientEnvironment({}, HOME, FOLDER, texts)))) == {"p": LED}


# -- the others --------------------------------------------------------------------------------------------------------


def test_pi():
    """pi has an extension that knows the proxy; its commands about packages, which ask no model, have none."""
    made = plan_launch("pi", order(None, "-p", "hi"))
    assert made.arguments == ("-e", "/tmp/holdfast-1/holdfast.js")
    (text,) = made.files.values()
    assert f'const proxy = "{PROXY}"' in text
    assert all(one.official in text for one in PROVIDERS.values())
    assert plan_launch("pi", order(None, "install", "npm:x")).arguments == ()


RUN = """
import extension from "FILE";
const models = JSON.parse(process.argv[1]), handlers = {};
extension({ on: (event, handler) => { handlers[event] = handler; } });
const copied = (model) => ({ ...model });
for (const event of ["session_start", "before_agent_start", "model_select"])
  handlers[event]({}, { modelRegistry: { getAll: () => models } });
const current = copied(JSON.parse(process.argv[1])[0]), chosen = copied(JSON.parse(process.argv[1])[1]);
handlers.before_agent_start({}, { modelRegistry: { getAll: () => models.map(copied) }, model: current });
handlers.model_select({ model: chosen }, { modelRegistry: { getAll: () => models.map(copied) } });
console.log(JSON.stringify([...models, current, chosen].map((model) => model.baseUrl)));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_the_extension_of_pi(tmp_path):
    """However often it is called, the extension leads to where Python does; models of other APIs are left alone.

    The model in use is led, and one that is chosen, also where pi makes the listed models anew at each call.
    """
    file = tmp_path / "holdfast.mjs"
    file.write_text(next(iter(plan_launch("pi", order()).files.values())))
    urls = ["https://api.anthropic.com", "https://api.openai.com/v1", "https://api.openai.com.example", GATEWAY, LED]
    models = [{"api": "openai-completions", "baseUrl": url} for url in urls] + [{"api": "other", "baseUrl": GATEWAY}]
    words = ["node", "--input-type=module", "-e", RUN.replace("FILE", file.as_uri()), json.dumps(models)]
    done = subprocess.run(words, capture_output=True, check=False, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    led = [order().make_proxied_url(url) for url in urls]
    assert json.loads(done.stdout) == [*led, GATEWAY, *led[:2]]


def test_gemini():
    """Gemini CLI has its variable; an address in the user's own file of variables stays the upstream."""
    assert dict(plan_launch("gemini", order()).environment) == {"GOOGLE_GEMINI_BASE_URL": PROXY}
    told = at("gemini", f'# mine\nexport GOOGLE_GEMINI_BASE_URL="{GATEWAY}" # gateway\n')
    assert dict(plan_launch("gemini", order(told)).environment) == {"GOOGLE_GEMINI_BASE_URL": LED}


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [
        ('{"security": {"auth": {"selectedType": "gemini-api-key"}}, // mine\n}', False),
        ('{"security": {"auth": {}}}', True),
        ("{broken", True),
        (None, True),
    ],
)
def test_gemini_that_takes_no_key_from_a_variable(settings, is_told):
    """Where its settings choose no login, it is said which line is needed; they are among the files that are read."""
    path = f"{HOME}/.gemini/settings.json"
    assert path in list_launch_files("gemini", place())
    made = plan_launch(
        "gemini", order(ClientEnvironment({}, HOME, FOLDER, {} if settings is None else {path: settings}))
    )
    assert [path in note and "gemini-api-key" in note for note in made.notes] == [True] * is_told


def test_aider():
    """aider's own variable stands above its files, whose address stays the upstream; what cannot be helped is said."""
    told = at("aider", "ANTHROPIC_API_BASE=https://x.example\n")
    texts = {**told.file_texts, f"{FOLDER}/.aider.conf.yml": f"model: x\nopenai-api-base: {GATEWAY}\n"}
    made = plan_launch("aider", order(ClientEnvironment({}, HOME, FOLDER, texts)))
    for name in ("AIDER_OPENAI_API_BASE", "OPENAI_API_BASE", "OPENAI_BASE_URL"):
        assert made.environment[name] == LED
    assert made.environment["ANTHROPIC_BASE_URL"] == PROXY
    assert "ANTHROPIC_API_BASE" in made.notes[0]
    assert made.arguments == ()


def test_aider_reads_the_files_at_the_top_of_its_repository():
    """Behind those at home and before those of the folder; outside of a repository there are none of it."""
    root = f"{HOME}/project"
    place = ClientEnvironment(
        {}, HOME, f"{root}/deep/folder", {f"{root}/.aider.conf.yml": f"openai-api-base: {GATEWAY}\n"}
    )
    places = [
        path.removesuffix("/.env")
        for path in list_settings_files("aider", replace(place, repository_root=root))
        if path.endswith(".env")
    ]
    assert places == [HOME, root, place.folder]
    assert [one.url for one in find_configured_urls("aider", replace(place, repository_root=root))] == [GATEWAY]
    assert find_configured_urls("aider", place) == ()


def test_aider_whose_file_sets_its_own_variable():
    """Only an option stands above it; what LiteLLM asks before that is said."""
    made = plan_launch("aider", order(at("aider", f"AIDER_OPENAI_API_BASE={GATEWAY}\n")))
    assert made.arguments == ("--openai-api-base", LED)
    assert not made.notes
    made = plan_launch("aider", order(at("aider", f"OPENAI_BASE_URL={GATEWAY}\n")))
    assert "OPENAI_BASE_URL" in made.notes[0]


def test_llm():
    """Without models of its own llm has variables alone; with some it has a folder with other addresses in one file."""
    assert "LLM_USER_PATH" not in plan_launch("llm", order()).environment
    text = f'- model_id: a\n  api_base: "{GATEWAY}"\n- api_base: {PROVIDERS["openai"].official}/v1\n  model_id: b # c\n'
    made = plan_launch("llm", order(at("llm", text, {"LLM_USER_PATH": f"{HOME}/llm"})))
    assert made.environment["LLM_USER_PATH"] == "/tmp/holdfast-1"
    assert made.mirrored_folder == f"{HOME}/llm"
    assert made.files == {
        "extra-openai-models.yaml": text.replace(GATEWAY, LED).replace(PROVIDERS["openai"].official, PROXY)
    }


# -- what settings say -------------------------------------------------------------------------------------------------

SAID = {
    "claude": ('{"env": {"ANTHROPIC_BASE_URL": "https://x.example"}}', "ANTHROPIC_BASE_URL"),
    "codex": ('openai_base_url = "https://x.example"', "openai_base_url"),
    "opencode": ('{"provider": {"p": {"options": {"baseURL": "https://x.example"}}}}', "p"),
    "pi": ('{"providers": {"p": {"baseUrl": "https://x.example"}}}', "p"),
    "gemini": ("GOOGLE_GEMINI_BASE_URL=https://x.example", "GOOGLE_GEMINI_BASE_URL"),
    "aider": ("OPENAI_API_BASE='https://x.example'", "OPENAI_API_BASE"),
    "llm": ("- model_id: x\n  api_base: 'https://x.example'", "api_base"),
}


@pytest.mark.parametrize("client", SETTINGS_READERS)
def test_where_settings_lead(client):
    """Each client's own files tell where they lead, and which file says so."""
    where = at(client, SAID[client][0])
    (one,) = find_configured_urls(client, where)
    assert (one.path, one.key, one.url) == (list_settings_files(client, where)[0], SAID[client][1], "https://x.example")


@given(st.recursive(st.text() | st.integers(-9, 9) | st.booleans(), lambda x: st.lists(x, max_size=3)))
def test_json_with_comments(value):
    """A file without comments is read as it is, whatever strings are in it; comments and last commas are left out."""
    text = json.dumps(value)
    assert parse_lenient_json(f'{{"x": {text}}}') == {"x": value}
    assert parse_lenient_json(f'// a\n{{"x": {text}, /* "y": 2,\n */ }} // }}') == {"x": value}
