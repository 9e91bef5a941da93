"""The proxy's settings come from options, variables and files; an invalid one is an error that names it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from holdfast.config import CONFIG_FILE_NAME, load_configuration, parse_catalog
from holdfast.config.proxy import ProxySettings, convert_proxy_setting, parse_proxy_table
from holdfast.errors import ConfigError
from holdfast.proxy.settings import Settings, load_proxy_settings

TOKEN = "a-token-of-20-signs!"
NON_DEFAULTS = {
    "anthropic": "https://gateway.example",
    "openai": "http://127.0.0.1:8080/v1",
    "gemini": "https://gateway.example/g/v1beta",
    "policy": "pi",
    "observe": True,
    "bypass": True,
    "summaries": "client",
    "window": 32_000,
    "ask_windows": False,
    "telemetry": True,
    "telemetry_content": True,
    "host": "::1",
    "port": 0,
    "token": TOKEN,
    "body_bytes": 1,
    "concurrent": 1,
    "keepalive": 0.5,
    "drain": 5.0,
}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@pytest.fixture
def write_files(tmp_path: Path):
    """Return a function that writes the project's and the user's file and returns their proxy table."""

    def write(project: str = "", user: str = "") -> dict[str, object]:
        for name, text in (("project", project), ("user", user)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / CONFIG_FILE_NAME).write_text(text, "utf-8")
        return load_configuration(tmp_path / "project", tmp_path / "user").proxy

    return write


def test_load_proxy_settings_defaults():
    """By default the proxy listens on loopback, uses the providers' own addresses, and makes no model call of its
    own.
    """
    found = load_proxy_settings({})
    assert found == Settings()
    assert (found.host, found.token, found.summaries, found.observe, found.bypass) == (
        "127.0.0.1",
        "",
        "extract",
        False,
        False,
    )


def test_proxy_table_has_a_key_for_every_setting(write_files):
    """Every setting has a key of its name in the file, and the project's file overrides the user's key by key."""
    assert set(NON_DEFAULTS) == set(Settings.__struct_fields__)
    lines = [
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
        for key, value in NON_DEFAULTS.items()
    ]
    table = write_files("[proxy]\nwindow = 5\nobserve = false\n", "\n".join(["[proxy]", *lines]))
    assert asdict(load_proxy_settings({}, table)) == NON_DEFAULTS | {"window": 5, "observe": False}
    assert asdict(load_proxy_settings({}, {}, NON_DEFAULTS)) == NON_DEFAULTS


def test_load_proxy_settings_precedence():
    """Options override Holdfast's variables, these override the files, and the files override the variables of the
    SDKs.
    """
    environment = {"OPENAI_BASE_URL": "http://sdk", "HOLDFAST_BYPASS": "1", "HOLDFAST_TOKEN": TOKEN}
    assert load_proxy_settings(environment) == Settings(openai="http://sdk", bypass=True, token=TOKEN)
    table = {"openai": "http://file", "bypass": False, "token": "x" * 16}
    assert load_proxy_settings(environment, table) == Settings(openai="http://file", bypass=True, token=TOKEN)
    options = {"openai": "http://here", "bypass": False, "token": "y" * 16, "port": None}
    assert load_proxy_settings(environment, table, options) == Settings(openai="http://here", token="y" * 16)


@pytest.mark.parametrize(
    ("variable", "upstream"),
    [
        ("ANTHROPIC_BASE_URL", "anthropic"),
        ("ANTHROPIC_API_BASE", "anthropic"),
        ("ANTHROPIC_API_URL", "anthropic"),
        ("OPENAI_BASE_URL", "openai"),
        ("OPENAI_API_BASE", "openai"),
        ("GOOGLE_GEMINI_BASE_URL", "gemini"),
        ("GEMINI_API_BASE", "gemini"),
    ],
)
def test_load_proxy_settings_reads_sdk_variables(variable, upstream):
    """An SDK's variable names the upstream, unless it is empty or leads to the proxy itself; an invalid one is an error
    that names it.
    """
    assert getattr(load_proxy_settings({variable: "http://box:1/v1"}), upstream) == "http://box:1/v1"
    for own in ("http://127.0.0.1:8642", "http://localhost:8642/v1", "http://[::1]:8642/u/https://h", ""):
        assert load_proxy_settings({variable: own}) == Settings()
    assert (
        getattr(load_proxy_settings({variable: "http://127.0.0.1:8642"}, {}, {"port": 9}), upstream)
        == "http://127.0.0.1:8642"
    )
    with pytest.raises(ConfigError, match=f"{variable} = 'nowhere'.*an address such as"):
        load_proxy_settings({variable: "nowhere"})


def test_openai_base_url_overrides_openai_api_base():
    """Where both are set, the variable that the current SDK reads is used."""
    assert (
        load_proxy_settings({"OPENAI_API_BASE": "http://old", "OPENAI_BASE_URL": "http://new"}).openai == "http://new"
    )


@pytest.mark.parametrize(
    ("text", "is_on"), [("1", True), ("yes", True), ("0", False), ("", False), (" False ", False), ("off", False)]
)
def test_holdfast_bypass_variable_overrides_the_file(text, is_on):
    """The variable is a switch with several spellings, and it overrides the file."""
    assert load_proxy_settings({"HOLDFAST_BYPASS": text}, {"bypass": not is_on}).bypass is is_on


@pytest.mark.parametrize("name", ["anthropic", "openai", "gemini"])
def test_load_proxy_settings_rejects_the_proxy_as_upstream(name):
    """An upstream that is the proxy itself is an error, wherever it was set."""
    with pytest.raises(ConfigError, match=f"{name} = http://localhost:77/v1 is the proxy itself"):
        load_proxy_settings({}, {name: "http://localhost:77/v1"}, {"port": 77})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan"])
def test_load_proxy_settings_requires_a_token_beyond_loopback(host):
    """Listening beyond loopback without a token is an error that says where to set it."""
    with pytest.raises(ConfigError, match=r"without a token; set HOLDFAST_TOKEN"):
        load_proxy_settings({}, {}, {"host": host})
    assert load_proxy_settings({"HOLDFAST_TOKEN": TOKEN}, {}, {"host": host}).host == host


@pytest.mark.parametrize("wrong", [f"{TOKEN}\n", "short-secret"])
def test_proxy_token_is_never_shown(wrong):
    """No error and no representation of the settings contains the token."""
    assert TOKEN not in f"{Settings(token=TOKEN)!r} {Settings(token=TOKEN)}"
    for step in (
        partial(convert_proxy_setting, "token", wrong, "token"),
        partial(load_proxy_settings, {"HOLDFAST_TOKEN": wrong}),
    ):
        with pytest.raises(ConfigError, match="16 or more") as error:
            step()
        assert wrong.strip() not in str(error.value)


@pytest.mark.parametrize(
    "line",
    ["openai = 'https://evil.example/v1'", f"token = '{TOKEN}'", "host = '0.0.0.0'", "telemetry_content = true"],
)
def test_project_file_may_not_send_keys_to_other_machines(write_files, line, tmp_path):
    """A project's file may only name servers of this machine; the user's own file may name any, also where both are the
    same file.
    """
    assert write_files("[proxy]\nopenai = 'http://localhost:1/v1'\nhost = '::1'\n", f"[proxy]\n{line}\n")
    with pytest.raises(ConfigError, match=f"{line.split()[0]} would lead beyond this machine") as error:
        write_files(f"[proxy]\n{line}\n")
    assert f"move the line to {tmp_path / 'user' / CONFIG_FILE_NAME}" in str(error.value)
    assert TOKEN not in str(error.value)
    assert load_configuration(tmp_path / "project", tmp_path / "project").proxy


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[proxy]\nobserv = true", ["[proxy]", "'observ'", "did you mean observe"]),
        ("[proxy]\nzzz = 1", ["there are: anthropic, openai, gemini, policy"]),
        ("[proxy]\nobserve = 1", ["observe = 1", "true or false"]),
        ("[proxy]\nport = 65536", ["port = 65536", "a whole number up to 65,535, 0 = a free port"]),
        ("[proxy]\nport = '80'", ["port = '80'", "a whole number"]),
        ("[proxy]\nwindow = -1", ["window = -1", "0 = as the catalogue says"]),
        ("[proxy]\ndrain = nan", ["drain = nan", "a number of seconds from 0 to 3,600"]),
        ("[proxy]\nkeepalive = inf", ["keepalive = inf", "a number of seconds"]),
        ("[proxy]\nbody_bytes = 0", ["body_bytes = 0", "1 or more"]),
        ("[proxy]\npolicy = 'hold'", ["policy = 'hold'", "no policy is called that", "holdfast"]),
        ("[proxy]\nsummaries = ''", ["summaries = ''", '"extract", "client", or the name of a model']),
        ("[proxy]\nopenai = 'host/v1'", ["openai = 'host/v1'", "an address such as"]),
        ("[proxy]\nopenai = 'https://me:pw@h'", ["is of another form"]),
        ("[proxy]\nopenai = 'https://h/v1?key=1'", ["an address such as"]),
        ("[proxy]\nopenai = 'https://h:99999'", ["a host or a port that cannot be"]),
        ("[proxy]\nhost = 'http://h'", ["a name or an address without a port"]),
        ("proxy = 5", ["proxy = 5 must be a table", "[proxy]"]),
        ("[[proxy]]\nport = 1", ["must be a table"]),
        ("[proxi]\nport = 1", ["`proxi`", "did you mean proxy?"]),
    ],
)
def test_proxy_table_errors_name_the_key_and_the_allowed_values(text, parts):
    """An error names the file, the table, the key and the allowed values."""
    with pytest.raises(ConfigError) as error:
        parse_catalog(text, "some/holdfast.toml")
    assert str(error.value).startswith("some/holdfast.toml: ")
    assert all(part in str(error.value) for part in parts), str(error.value)


@given(st.sampled_from(Settings.__struct_fields__), values)
def test_parse_proxy_table_converts_or_rejects_any_value(key, value):
    """Any value becomes a setting of its type or an error that names its key."""
    try:
        table = parse_proxy_table({key: value}, "file")
    except ConfigError:
        with pytest.raises(ConfigError, match=rf"file: \[proxy\] {key} = "):
            parse_proxy_table({key: value}, "file")
    else:
        assert isinstance(table[key], type(getattr(ProxySettings(), key)))
