#!/usr/bin/env bash
# Install every client into FOLDER (about 3 GB) at its newest version, and print the versions that are there.
#
# Usage: tests/clients/install.sh FOLDER [PIN]...
#
# A PIN is a package with its version, as its registry writes it: @openai/codex@0.169.0, anthropic==2.12.0, node@22.
# The machine needs npm and Python; the Node that the clients run on is installed beside them. Where something cannot be
# installed, the rest is installed all the same, and the script says what is missing and exits with 1.
set -uo pipefail

if [ $# -eq 0 ]; then
  echo "Usage: tests/clients/install.sh FOLDER [PIN]..." >&2
  exit 2
fi
folder=$1
shift
pins=("$@")
missing=()

# The Node release line with long-term support: pi needs 22.19 or newer, Claude Code 22, and many machines have less.
NODE=node@24
COMMAND_LINE="@anthropic-ai/claude-code @openai/codex opencode-ai @earendil-works/pi-coding-agent @google/gemini-cli"

# Libraries share an environment only where their requirements agree.
LIBRARIES="anthropic openai google-genai langchain-openai langchain-anthropic llm"
LITELLM="litellm mcp" # litellm.responses imports mcp
AIDER="aider-chat"    # needs Python 3.10 to 3.12

for pin in ${pins[@]+"${pins[@]}"}; do
  case "$pin" in
    *?@?*) name=${pin%@*} known="node $COMMAND_LINE" ;;
    *?==?*) name=${pin%==*} known="$LIBRARIES $LITELLM $AIDER" ;;
    *) name="" known="" ;;
  esac
  case " $known " in
    *" ${name:-?} "*) ;;
    *)
      echo "$pin pins nothing. Write NAME@VERSION of one of: node $COMMAND_LINE;" \
        "or NAME==VERSION of one of: $LIBRARIES $LITELLM $AIDER" >&2
      exit 2
      ;;
  esac
done
mkdir -p "$folder" && cd "$folder" || exit 1

# Print the pin of a package, or the second argument where it has none. The third is what stands before a version.
pin_of() {
  local pin
  for pin in ${pins[@]+"${pins[@]}"}; do
    [ "${pin%"$3"*}" = "$1" ] && { echo "$pin"; return; }
  done
  echo "$2"
}

# Print the first Python of the named ones that runs on this machine.
find_python() {
  local python
  for python in "$@"; do
    "$python" -c '' 2>/dev/null && { echo "$python"; return; }
  done
}

install_npm() { # PACKAGE WANTED
  npm install --no-audit --no-fund --loglevel=error "$(pin_of "$1" "$2" @)" >/dev/null || missing+=("$1")
}

install_environment() { # NAME PYTHON PACKAGE...
  local name=$1 python=$2 package wanted=()
  shift 2
  for package in "$@"; do wanted+=("$(pin_of "$package" "$package" ==)"); done
  if ! { [ -d "$name" ] || "$python" -m venv "$name"; } ||
    ! "$name/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "${wanted[@]}"; then
    missing+=("$@")
  fi
}

print_npm_version() { # PACKAGE
  local version
  version=$(node -p "require('./node_modules/$1/package.json').version" 2>/dev/null) || version=-
  printf '%-34s %-12s %s\n' "$1" "$version" "$(npm view "$1" version 2>/dev/null)"
}

print_environment_versions() { # NAME PACKAGE...
  local name=$1
  shift
  "$name/bin/python" - "$@" <<'PYTHON' || printf '%-34s %-12s\n' "$name" -
import importlib.metadata, json, subprocess, sys

newest = {}
command = [sys.executable, "-m", "pip", "list", "--outdated", "--format=json", "--disable-pip-version-check"]
outdated = subprocess.run(command, capture_output=True, text=True)
if outdated.returncode == 0:
    newest = {package["name"]: package["latest_version"] for package in json.loads(outdated.stdout)}
for name in sys.argv[1:]:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = "-"
    print(f"{name:<34} {version:<12} {newest.get(name, version)}")
PYTHON
}

[ -f package.json ] || echo '{"private": true}' >package.json
install_npm node "$NODE"
for package in $COMMAND_LINE; do install_npm "$package" "$package@latest"; done
# shellcheck disable=SC2086 # the lists are split into their words
{
  install_environment venv "$(find_python python3 python)" $LIBRARIES
  install_environment venv-litellm "$(find_python python3 python)" $LITELLM
  install_environment venv-aider "$(find_python python3.12 python3.11 python3.10 python3)" $AIDER
}

printf '%-34s %-12s %s\n' package installed newest
for package in node $COMMAND_LINE; do print_npm_version "$package"; done
# shellcheck disable=SC2086
{
  print_environment_versions venv $LIBRARIES
  print_environment_versions venv-litellm $LITELLM
  print_environment_versions venv-aider $AIDER
}

if [ ${#missing[@]} -gt 0 ]; then
  echo "Not installed: ${missing[*]}. Each said why above; run this again, or pin a version that can be installed." >&2
  exit 1
fi
