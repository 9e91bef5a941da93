#!/bin/sh
# Keeps Codex's session in the store of Holdfast. Codex runs it with what happened as JSON on standard input:
#
#   holdfast.sh check      a session begins: say whether Holdfast is there
#   holdfast.sh record     a turn or the session has ended: import the session in the background
#   holdfast.sh compacted  Codex has compacted: import the session, and tell the model how to read the rest back
#
# Whatever goes wrong, it ends with 0 and Codex goes on; the reason is said once in a session.

event=$(cat)
failure=$PLUGIN_DATA/failure # what to say about the last import, if it failed; maybe in the next session
said=$PLUGIN_DATA/said       # the session that was told something, and about what
note='This conversation was compacted, and only a summary of it stands above. Nothing is lost: the MCP server "holdfast"
has all of it. Its tool "search" finds what the user said, what you said, and the results of tools, word for word; its
tool "recall" reads a text by its id. Use them before you guess a detail or ask again for what was said before.'

field() { # field NAME: print a string of the event, or nothing if it is absent, null or has an escaped character
  printf '%s' "$event" | sed -n 's/.*"'"$1"'":"\([^"\\]*\)".*/\1/p'
}

say() { # say ABOUT TEXT: show one line to the user, unless this session was told about the same before
  told="$(field session_id) $1"
  [ "$(cat "$said" 2>/dev/null)" = "$told" ] && return
  printf '%s' "$told" >"$said"
  text=$(printf 'Holdfast: %s' "$2" | tr -d '\000-\037' | sed 's/[\\"]/\\&/g')
  printf '{"systemMessage":"%s"}\n' "$text"
}

say_failure() {
  [ -s "$failure" ] && say import "$(cat "$failure")"
}

last_line() { # last_line TEXT: print its last line, without the "Error: " of a command and cut to a readable length
  printf '%s\n' "$1" | tail -n 1 | sed 's/^Error: //' | cut -c 1-300
}

import() { # import the session's file
  if output=$(holdfast import "$transcript" 2>&1 >/dev/null); then
    rm -f "$failure"
  else
    why=$(last_line "${output:-holdfast import failed}")
    printf '%s' "a session was not recorded ($why); to see more, run: holdfast import $transcript" >"$failure"
    return 1
  fi
}

mkdir -p "$PLUGIN_DATA" 2>/dev/null || exit 0
if ! command -v holdfast >/dev/null 2>&1; then
  [ "$1" = check ] && say missing 'no program "holdfast" is on the PATH, so no session is recorded; install it, or run: codex plugin remove holdfast@holdfast'
  exit 0
fi
transcript=$(field agent_transcript_path) # that of a sub-agent, which becomes a session of its own
transcript=${transcript:-$(field transcript_path)}

case $1 in
  check)
    say_failure
    ;;
  record)
    say_failure
    # With none of our streams, or Codex would wait for them; and the import may outlive Codex.
    if [ -n "$transcript" ]; then
      (trap '' HUP && import) </dev/null >/dev/null 2>&1 &
    fi
    ;;
  compacted)
    if [ -z "$transcript" ]; then # a session that Codex keeps in no file
      exit 0
    elif ! import; then
      say_failure
    elif ! output=$(holdfast mcp --json 2>&1 >/dev/null); then
      say recall "recall is not available ($(last_line "$output"))"
    else
      printf '%s\n' "$note"
    fi
    ;;
esac
exit 0
