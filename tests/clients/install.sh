#!/usr/bin/env bash
# Installs every client into FOLDER (about 2 GB): the clients of the command line, and an environment for each group
# of libraries that bear each other.  Usage: tests/clients/install.sh FOLDER
set -euo pipefail
mkdir -p "$1"; cd "$1"
[ -f package.json ] || npm init -y >/dev/null
npm install --no-audit --no-fund @anthropic-ai/claude-code@2.1.197 @openai/codex@0.169.0 opencode-ai@1.18.33 \
  @earendil-works/pi-coding-agent@0.74.2 @google/gemini-cli@0.61.0
environment() {
  local name=$1; shift
  [ -d "$name" ] || python3 -m venv "$name"
  "$name/bin/pip" install --quiet "$@"
}
environment venv llm==0.36 langchain-openai==1.7.3 langchain-anthropic==1.7.7 anthropic==2.12.0 openai==3.54.0 google-genai==3.4.0
environment venv-litellm litellm==1.106.2 mcp
environment venv-aider aider-chat==0.86.2  # takes Python 3.10 to 3.12
