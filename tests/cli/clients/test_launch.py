"""How ``holdfast run`` starts clients: each gets the proxy's address, and its own address becomes the upstream."""

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
    CLAUDE_FIRST_PARTY_VARIABLE,
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
PROXIED_GATEWAY = f"{PROXY}/u/{GATEWAY}"
HOME, FOLDER = "/home/user", "/home/user/project"


def make_environment(environment=None, **texts):
    """Return a client environment with files named by the ends of their paths, ``__`` standing for a slash."""
    return ClientEnvironment(
        environment or {}, HOME, FOLDER, {name.replace("__", "/"): text for name, text in texts.items()}
    )


def make_environment_with_settings(client, text, environment=None):
    """Return an environment in which the weakest settings file of ``client`` contains ``text``."""
    bare = make_environment(environment)
    return ClientEnvironment(bare.environment, HOME, FOLDER, {list_settings_files(client, bare)[0]: text})


def make_launch_request(client_environment=None, *arguments, **more):
    return LaunchRequest(PROXY, client_environment or make_environment(), arguments, "/tmp/holdfast-1", **more)


def get_codex_options(plan):
    """Return the values of ``-c`` by their keys."""
    return dict(value.split("=", 1) for flag, value in pairwise(plan.arguments) if flag == "-c")


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.anthropic.com", PROXY),
        ("https://api.openai.com/v1", f"{PROXY}/v1"),
        ("https://generativelanguage.googleapis.com/v1beta", f"{PROXY}/v1beta"),
        ("https://api.openai.com.example/v1", f"{PROXY}/u/https://api.openai.com.example/v1"),
        (GATEWAY, PROXIED_GATEWAY),
        (PROXIED_GATEWAY, PROXIED_GATEWAY),
        (PROXY, PROXY),
        (f"{PROXY}0/v1", f"{PROXY}/u/{PROXY}0/v1"),
    ],
)
def test_make_proxied_url_names_only_foreign_upstreams(url, expected):
    """A provider's official address needs no upstream in the path, any other one does, and none is added twice."""
    assert make_launch_request().make_proxied_url(url) == expected


@given(
    host=st.from_regex(r"[a-z]{1,8}(\.[a-z]{2,5}){0,2}(:[1-9][0-9]{0,3})?", fullmatch=True),
    path=st.from_regex(r"(/[a-z0-9-]{1,6}){0,3}", fullmatch=True),
    suffix=st.sampled_from(["/messages", "/chat/completions", "/responses", "/models/m:generateContent"]),
)
def test_make_proxied_url_preserves_the_upstream_url(host, path, suffix):
    """For any address, what a client appends to the proxied URL reaches its own upstream unchanged."""
    own = f"https://{host}{path}"
    route = parse_route("POST", make_launch_request().make_proxied_url(own).removeprefix(PROXY) + suffix)
    assert build_upstream_url("http://elsewhere.example", route) == own + suffix


@pytest.mark.parametrize(
    ("command", "client"),
    [("claude", "claude"), ("/opt/bin/codex", "codex"), (r"C:\npm\opencode.cmd", "opencode"), ("Pi.exe", "pi")],
)
def test_get_command_client_recognizes_a_client_by_its_file_name(command, client):
    """A client is recognized by the name of its program, in any folder and with any extension."""
    assert get_command_client(command) == client


# -- variables ---------------------------------------------------------------------------------------------------------


def test_plan_launch_sets_every_sdk_variable_for_an_unknown_program():
    """An unknown program gets all address variables, each with the path that its SDK expects."""
    assert dict(plan_launch("python", make_launch_request()).environment) == {
        "ANTHROPIC_BASE_URL": PROXY,
        "OPENAI_BASE_URL": f"{PROXY}/v1",
        "OPENAI_API_BASE": f"{PROXY}/v1",
        "GOOGLE_GEMINI_BASE_URL": PROXY,
        "GEMINI_API_BASE": f"{PROXY}/v1beta",
        **{name: f"{PROXY}/u/{url}" for name, url in LITELLM_GATEWAYS.items()},
    }


@pytest.mark.parametrize("name", [*ADDRESS_VARIABLES, *LITELLM_GATEWAYS])
def test_plan_launch_keeps_the_users_variable_as_upstream(name):
    """An address that the user has set becomes the upstream behind the proxy."""
    assert (
        plan_launch("python", make_launch_request(make_environment({name: GATEWAY}))).environment[name]
        == PROXIED_GATEWAY
    )


def test_plan_launch_treats_alias_variables_alike():
    """If one of two variables with the same meaning is set, both lead to its address."""
    plan = plan_launch(
        "python", make_launch_request(make_environment({"OPENAI_API_BASE": GATEWAY, "ANTHROPIC_API_URL": GATEWAY}))
    ).environment
    assert plan["OPENAI_BASE_URL"] == plan["OPENAI_API_BASE"] == plan["ANTHROPIC_BASE_URL"] == PROXIED_GATEWAY
    assert plan["ANTHROPIC_API_URL"] == PROXIED_GATEWAY


def test_plan_launch_prefers_an_explicit_upstream_to_variables():
    """An upstream from the command line or a file wins over any variable."""
    variables = dict.fromkeys(ADDRESS_VARIABLES, GATEWAY)
    for client, name in (("claude", "ANTHROPIC_BASE_URL"), ("python", "ANTHROPIC_API_URL")):
        assert (
            plan_launch(
                client, make_launch_request(make_environment(variables), explicit_upstreams=frozenset({"anthropic"}))
            ).environment[name]
            == PROXY
        )
    assert (
        plan_launch(
            "python", make_launch_request(make_environment(variables), explicit_upstreams=frozenset({"anthropic"}))
        ).environment["OPENAI_BASE_URL"]
        == PROXIED_GATEWAY
    )


@pytest.mark.parametrize("client", [*CLIENT_LAUNCHERS, "python"])
def test_plan_launch_excludes_the_local_proxy_from_a_network_proxy(client):
    """If a network proxy is set, NO_PROXY gets this machine's addresses in addition to its own."""
    plan = plan_launch(
        client,
        make_launch_request(
            make_environment({"https_proxy": "", "HTTP_PROXY": "http://proxy:3128", "no_proxy": "intern"})
        ),
    )
    assert plan.environment["NO_PROXY"] == plan.environment["no_proxy"] == "intern,127.0.0.1,localhost"
    assert "NO_PROXY" not in plan_launch(client, make_launch_request()).environment


@pytest.mark.parametrize("client", CLIENT_LAUNCHERS)
def test_plan_launch_ignores_broken_client_settings(client):
    """Unreadable settings files name no address and stop nothing."""
    for text in ("", "{", "[[[", '{"env": 3, "provider": [], "providers": {"x": null}}', "\x00\xff", "- - -\n: :"):
        texts = dict.fromkeys(list_launch_files(client, make_environment()), text)
        plan_launch(client, make_launch_request(ClientEnvironment({}, HOME, FOLDER, texts)))


# -- Claude Code -------------------------------------------------------------------------------------------------------


CLAUDE_AT_ANTHROPIC = {"ANTHROPIC_BASE_URL": PROXY, CLAUDE_FIRST_PARTY_VARIABLE: "1"}


def test_plan_launch_sets_two_variables_for_claude():
    """Claude Code gets its address, and the word that this leads to Anthropic, so that it keeps its long windows."""
    plan = plan_launch("claude", make_launch_request(None, "-p", "hi"))
    assert (plan.arguments, dict(plan.environment), plan.files) == ((), CLAUDE_AT_ANTHROPIC, {})
    assert plan.notes == ()
    official = make_environment({"ANTHROPIC_BASE_URL": "https://api.anthropic.com"})
    assert dict(plan_launch("claude", make_launch_request(official)).environment) == CLAUDE_AT_ANTHROPIC


@pytest.mark.parametrize("own_url", [GATEWAY, PROXY, f"{PROXY}/u/{GATEWAY}"])
def test_plan_launch_never_says_of_another_server_that_it_is_anthropic(own_url):
    """A gateway, or a proxy that runs already and may lead anywhere: a note tells of the smaller window."""
    plan = plan_launch("claude", make_launch_request(make_environment({"ANTHROPIC_BASE_URL": own_url})))
    assert CLAUDE_FIRST_PARTY_VARIABLE not in plan.environment
    assert "200,000" in plan.notes[-1]
    assert "[1m]" in plan.notes[-1]
    explicit = replace(make_launch_request(), explicit_upstreams=frozenset({"anthropic"}))
    assert CLAUDE_FIRST_PARTY_VARIABLE not in plan_launch("claude", explicit).environment


def test_plan_launch_leaves_the_users_word_about_the_address_alone():
    """If the user set the variable, to whatever, it stays and nothing is noted."""
    for value in ("0", "1", ""):
        own = make_environment({CLAUDE_FIRST_PARTY_VARIABLE: value, "ANTHROPIC_BASE_URL": GATEWAY})
        plan = plan_launch("claude", make_launch_request(own))
        assert (dict(plan.environment), plan.notes) == ({"ANTHROPIC_BASE_URL": PROXIED_GATEWAY}, ())


def test_plan_launch_overrides_claude_settings_that_name_an_address():
    """Settings win over variables in Claude Code, so ``--settings`` is passed, with the configured upstream."""
    settings = json.dumps({"env": {"ANTHROPIC_BASE_URL": GATEWAY}})
    plan = plan_launch(
        "claude",
        make_launch_request(
            make_environment_with_settings("claude", settings, {"ANTHROPIC_BASE_URL": "http://weaker.example"})
        ),
    )
    assert plan.arguments == (
        "--settings",
        json.dumps({"env": {"ANTHROPIC_BASE_URL": PROXIED_GATEWAY}}, separators=(",", ":")),
    )
    both = plan_launch(
        "claude", make_launch_request(make_environment_with_settings("claude", settings), "--settings=mine.json")
    )
    assert both.arguments == ()
    assert "remove" in both.notes[0]


@pytest.mark.parametrize("name", ["settings.json", "settings.local.json"])
def test_plan_launch_never_follows_an_address_from_a_claude_project_folder(name):
    """A project folder may come from elsewhere, so its address is only reported, with an option to accept it."""
    path = f"{FOLDER}/.claude/{name}"
    settings = json.dumps({"env": {"ANTHROPIC_BASE_URL": GATEWAY}})
    environment = ClientEnvironment({}, HOME, FOLDER, {path: settings})
    assert path in list_launch_files("claude", environment)
    plan = plan_launch("claude", make_launch_request(environment))
    assert (plan.arguments, dict(plan.environment)) == ((), {"ANTHROPIC_BASE_URL": PROXY})
    assert plan.notes[0].startswith(f"{path} sets ANTHROPIC_BASE_URL")
    assert f"--upstream-anthropic {GATEWAY}" in plan.notes[0]
    with_explicit_upstream = plan_launch(
        "claude", replace(make_launch_request(environment), explicit_upstreams=frozenset({"anthropic"}))
    )
    assert with_explicit_upstream.arguments == (
        "--settings",
        json.dumps({"env": {"ANTHROPIC_BASE_URL": PROXY}}, separators=(",", ":")),
    )
    assert [note for note in with_explicit_upstream.notes if "200,000" not in note] == []
    own = ClientEnvironment(
        {}, HOME, FOLDER, {f"{HOME}/.claude/settings.json": settings.replace("://", "://own."), path: settings}
    )
    assert "own." in plan_launch("claude", make_launch_request(own)).arguments[1]


def test_plan_launch_notes_claude_requests_that_bypass_the_proxy():
    """Bedrock requests bypass the proxy, and a note says so."""
    assert (
        "BEDROCK"
        in plan_launch("claude", make_launch_request(make_environment({"CLAUDE_CODE_USE_BEDROCK": "1"}))).notes[0]
    )


# -- Codex -------------------------------------------------------------------------------------------------------------


def test_plan_launch_passes_codex_an_option_for_each_provider():
    """Codex gets options before its own arguments: its own provider's address and that of each configured one."""
    text = f'[model_providers.mine]\nbase_url = "{GATEWAY}"\n[model_providers."a.b"]\nbase_url = "{GATEWAY}"\n'
    plan = plan_launch("codex", make_launch_request(make_environment_with_settings("codex", text), "exec"))
    assert get_codex_options(plan) == {
        "openai_base_url": f'"{PROXY}/v1"',
        "model_providers.mine.base_url": f'"{PROXIED_GATEWAY}"',
    }
    assert "a.b" in plan.notes[0]
    assert not plan.environment


def test_plan_launch_uses_codex_settings_or_chatgpt_as_upstream():
    """The upstream is the address in the settings, or ChatGPT's if Codex is logged in there."""
    assert (
        get_codex_options(plan_launch("codex", make_launch_request(is_chatgpt=True)))["openai_base_url"]
        == f'"{PROXY}/u/{CHATGPT_CODEX_URL}"'
    )
    environment = make_environment_with_settings("codex", f'openai_base_url = "{GATEWAY}"')
    assert (
        get_codex_options(plan_launch("codex", make_launch_request(environment, is_chatgpt=True)))["openai_base_url"]
        == f'"{PROXIED_GATEWAY}"'
    )
    assert "--oss" in plan_launch("codex", make_launch_request(None, "--oss")).notes[0]


# -- opencode ----------------------------------------------------------------------------------------------------------


def get_opencode_urls(plan):
    """Return the base URL of each provider in opencode's configuration."""
    configuration = json.loads(plan.environment["OPENCODE_CONFIG_CONTENT"])
    return {name: provider["options"]["baseURL"] for name, provider in configuration.get("provider", {}).items()}


def test_plan_launch_lists_opencode_providers_that_can_be_used():
    """Providers with a configuration, a key or a login are led through the proxy; without any, a note says what
    bypasses it.
    """
    environment = make_environment({"ANTHROPIC_API_KEY": "k"})
    logins, listed = list_opencode_files(environment)
    texts = {
        list_settings_files("opencode", environment)[
            1
        ]: f'{{"provider": {{"mine": {{"options": {{"baseURL": "{GATEWAY}"}}}},}}}} // mine',
        logins: '{"groq": {"type": "api", "key": "secret"}, "bedrock": {}}',
        listed: json.dumps(
            {"groq": {"api": "https://groq.example/v1"}, "xai": {"api": GATEWAY, "env": ["XAI_API_KEY"]}}
        ),
    }
    plan = plan_launch("opencode", make_launch_request(ClientEnvironment(environment.environment, HOME, FOLDER, texts)))
    assert get_opencode_urls(plan) == {
        "anthropic": f"{PROXY}/v1",
        "mine": PROXIED_GATEWAY,
        "groq": f"{PROXY}/u/https://groq.example/v1",
    }
    assert "secret" not in str(plan)
    (note,) = plan_launch("opencode", make_launch_request(make_environment({}))).notes
    assert (plan.notes, "bypass the proxy; run opencode auth login" in note) == ((), True)


def test_plan_launch_gives_opencode_providers_their_usual_address():
    """A configured provider may have its key there, so it is led through the proxy by its usual address."""
    variables = {"OPENCODE_CONFIG_CONTENT": '{"provider": {"openai": {"options": {"timeout": 9}}}}'}
    texts = {f"{FOLDER}/opencode.json": '{"provider": {"google": {"options": {"apiKey": "secret"}}, "strange": {}}}'}
    plan = plan_launch("opencode", make_launch_request(ClientEnvironment(variables, HOME, FOLDER, texts)))
    providers = json.loads(plan.environment["OPENCODE_CONFIG_CONTENT"])["provider"]
    assert providers == {
        "openai": {"options": {"timeout": 9, "baseURL": f"{PROXY}/v1"}},
        "google": {"options": {"baseURL": f"{PROXY}/v1beta"}},
    }
    assert plan.notes == ()


def test_plan_launch_changes_only_addresses_in_opencodes_variable():
    """A configuration in the variable keeps all but its addresses, and the project's file wins over the user's."""
    configuration = {
        "model": "mine/m",
        "provider": {"mine": {"options": {"baseURL": GATEWAY, "apiKey": "k"}, "npm": "x"}},
    }
    environment = make_environment({"OPENCODE_CONFIG_CONTENT": json.dumps(configuration)})
    result = json.loads(
        plan_launch("opencode", make_launch_request(environment)).environment["OPENCODE_CONFIG_CONTENT"]
    )
    configuration["provider"]["mine"]["options"]["baseURL"] = PROXIED_GATEWAY
    assert result == configuration
    texts = {
        f"{HOME}/.config/opencode/opencode.json": '{"provider": {"p": {"options": {"baseURL": "http://weaker"}}}}',
        f"{FOLDER}/opencode.json": f'{{"provider": {{"p": {{"options": {{"baseURL": "{GATEWAY}"}}}}}}}}',
    }
    assert get_opencode_urls(
        plan_launch("opencode", make_launch_request(ClientEnvironment({}, HOME, FOLDER, texts)))
    ) == {"p": PROXIED_GATEWAY}


# -- other clients -----------------------------------------------------------------------------------------------------


def test_plan_launch_gives_pi_an_extension():
    """pi gets an extension that knows the proxy, except for its package commands, which send no request."""
    plan = plan_launch("pi", make_launch_request(None, "-p", "hi"))
    assert plan.arguments == ("-e", "/tmp/holdfast-1/holdfast.js")
    (text,) = plan.files.values()
    assert f'const proxy = "{PROXY}"' in text
    assert all(provider.official in text for provider in PROVIDERS.values())
    assert plan_launch("pi", make_launch_request(None, "install", "npm:x")).arguments == ()


EXTENSION_RUNNER = """
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
def test_pi_extension_rewrites_model_urls_as_python_does(tmp_path):
    """The extension rewrites each model's URL as Python does, also when called again; models of other APIs stay. The
    model in use and a newly chosen one are rewritten too, even if pi creates the listed models anew at each call.
    """
    file = tmp_path / "holdfast.mjs"
    file.write_text(next(iter(plan_launch("pi", make_launch_request()).files.values())))
    urls = [
        "https://api.anthropic.com",
        "https://api.openai.com/v1",
        "https://api.openai.com.example",
        GATEWAY,
        PROXIED_GATEWAY,
    ]
    models = [{"api": "openai-completions", "baseUrl": url} for url in urls] + [{"api": "other", "baseUrl": GATEWAY}]
    words = ["node", "--input-type=module", "-e", EXTENSION_RUNNER.replace("FILE", file.as_uri()), json.dumps(models)]
    result = subprocess.run(words, capture_output=True, check=False, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    expected = [make_launch_request().make_proxied_url(url) for url in urls]
    assert json.loads(result.stdout) == [*expected, GATEWAY, *expected[:2]]


def test_plan_launch_sets_one_variable_for_gemini():
    """Gemini CLI gets its variable, with an address in the user's own .env file as upstream."""
    assert dict(plan_launch("gemini", make_launch_request()).environment) == {"GOOGLE_GEMINI_BASE_URL": PROXY}
    environment = make_environment_with_settings(
        "gemini", f'# mine\nexport GOOGLE_GEMINI_BASE_URL="{GATEWAY}" # gateway\n'
    )
    assert dict(plan_launch("gemini", make_launch_request(environment)).environment) == {
        "GOOGLE_GEMINI_BASE_URL": PROXIED_GATEWAY
    }


@pytest.mark.parametrize(
    ("settings", "is_noted"),
    [
        ('{"security": {"auth": {"selectedType": "gemini-api-key"}}, // mine\n}', False),
        ('{"security": {"auth": {}}}', True),
        ("{broken", True),
        (None, True),
    ],
)
def test_plan_launch_notes_gemini_settings_without_a_key_login(settings, is_noted):
    """If the settings select no login, a note says which line is needed; they are among the files read."""
    path = f"{HOME}/.gemini/settings.json"
    assert path in list_launch_files("gemini", make_environment())
    plan = plan_launch(
        "gemini", make_launch_request(ClientEnvironment({}, HOME, FOLDER, {} if settings is None else {path: settings}))
    )
    assert [path in note and "gemini-api-key" in note for note in plan.notes] == [True] * is_noted


def test_plan_launch_sets_aiders_own_variables():
    """aider's own variable wins over its files, whose address is the upstream; a note names the rest."""
    environment = make_environment_with_settings("aider", "ANTHROPIC_API_BASE=https://x.example\n")
    texts = {**environment.file_texts, f"{FOLDER}/.aider.conf.yml": f"model: x\nopenai-api-base: {GATEWAY}\n"}
    plan = plan_launch("aider", make_launch_request(ClientEnvironment({}, HOME, FOLDER, texts)))
    for name in ("AIDER_OPENAI_API_BASE", "OPENAI_API_BASE", "OPENAI_BASE_URL"):
        assert plan.environment[name] == PROXIED_GATEWAY
    assert plan.environment["ANTHROPIC_BASE_URL"] == PROXY
    assert "ANTHROPIC_API_BASE" in plan.notes[0]
    assert plan.arguments == ()


def test_list_settings_files_includes_aiders_repository_root():
    """The root's files come after those at home and before those of the folder; outside a repository there are none."""
    root = f"{HOME}/project"
    environment = ClientEnvironment(
        {}, HOME, f"{root}/deep/folder", {f"{root}/.aider.conf.yml": f"openai-api-base: {GATEWAY}\n"}
    )
    folders = [
        path.removesuffix("/.env")
        for path in list_settings_files("aider", replace(environment, repository_root=root))
        if path.endswith(".env")
    ]
    assert folders == [HOME, root, environment.folder]
    assert [url.url for url in find_configured_urls("aider", replace(environment, repository_root=root))] == [GATEWAY]
    assert find_configured_urls("aider", environment) == ()


def test_plan_launch_passes_aider_an_option_over_its_env_file():
    """Only an option wins over a variable in the file; a note names what LiteLLM reads before it."""
    plan = plan_launch(
        "aider", make_launch_request(make_environment_with_settings("aider", f"AIDER_OPENAI_API_BASE={GATEWAY}\n"))
    )
    assert plan.arguments == ("--openai-api-base", PROXIED_GATEWAY)
    assert not plan.notes
    plan = plan_launch(
        "aider", make_launch_request(make_environment_with_settings("aider", f"OPENAI_BASE_URL={GATEWAY}\n"))
    )
    assert "OPENAI_BASE_URL" in plan.notes[0]


def test_plan_launch_gives_llm_a_folder_if_it_has_models_of_its_own():
    """Without models of its own llm gets variables only; with some, a folder with other addresses in one file."""
    assert "LLM_USER_PATH" not in plan_launch("llm", make_launch_request()).environment
    text = f'- model_id: a\n  api_base: "{GATEWAY}"\n- api_base: {PROVIDERS["openai"].official}/v1\n  model_id: b # c\n'
    plan = plan_launch(
        "llm", make_launch_request(make_environment_with_settings("llm", text, {"LLM_USER_PATH": f"{HOME}/llm"}))
    )
    assert plan.environment["LLM_USER_PATH"] == "/tmp/holdfast-1"
    assert plan.mirrored_folder == f"{HOME}/llm"
    assert plan.files == {
        "extra-openai-models.yaml": text.replace(GATEWAY, PROXIED_GATEWAY).replace(PROVIDERS["openai"].official, PROXY)
    }


# -- settings files ----------------------------------------------------------------------------------------------------

SETTINGS_TEXTS = {
    "claude": ('{"env": {"ANTHROPIC_BASE_URL": "https://x.example"}}', "ANTHROPIC_BASE_URL"),
    "codex": ('openai_base_url = "https://x.example"', "openai_base_url"),
    "opencode": ('{"provider": {"p": {"options": {"baseURL": "https://x.example"}}}}', "p"),
    "pi": ('{"providers": {"p": {"baseUrl": "https://x.example"}}}', "p"),
    "gemini": ("GOOGLE_GEMINI_BASE_URL=https://x.example", "GOOGLE_GEMINI_BASE_URL"),
    "aider": ("OPENAI_API_BASE='https://x.example'", "OPENAI_API_BASE"),
    "llm": ("- model_id: x\n  api_base: 'https://x.example'", "api_base"),
}


@pytest.mark.parametrize("client", SETTINGS_READERS)
def test_find_configured_urls_names_file_and_key(client):
    """Each client's own files name its addresses, with the file and key of each."""
    environment = make_environment_with_settings(client, SETTINGS_TEXTS[client][0])
    (configured,) = find_configured_urls(client, environment)
    assert (configured.path, configured.key, configured.url) == (
        list_settings_files(client, environment)[0],
        SETTINGS_TEXTS[client][1],
        "https://x.example",
    )


@given(st.recursive(st.text() | st.integers(-9, 9) | st.booleans(), lambda x: st.lists(x, max_size=3)))
def test_parse_lenient_json_accepts_comments_and_trailing_commas(value):
    """JSON without comments is parsed as it is, whatever its strings hold; comments and trailing commas are dropped."""
    text = json.dumps(value)
    assert parse_lenient_json(f'{{"x": {text}}}') == {"x": value}
    assert parse_lenient_json(f'// a\n{{"x": {text}, /* "y": 2,\n */ }} // }}') == {"x": value}
