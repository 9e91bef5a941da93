/** The tool with which the model reads back what its requests no longer show. `holdfast recall` does the work. */

import { execFile } from 'node:child_process'

/** How long a search of a long session may take. */
const TIMEOUT_MS = 30_000
const MAX_BYTES = 64 * 1024 * 1024

const DESCRIPTION = `Reads back texts of this conversation that are shown as a preview, a placeholder or a summary. \
Nothing was lost. With id: that text, or the message with that id. With search and no id: the messages that have these \
words. With neither: the list of texts stored away.`

/**
 * Return the tool `recall` of opencode.
 *
 * @param {(sessionID: string) => string | undefined} getKey The session's name in Holdfast's store.
 */
export function createRecallTool(getKey) {
  return {
    description: DESCRIPTION,
    // opencode declares all of them as required.
    args: {
      id: { type: 'string', description: 'The id in a preview, a notice or a search result; empty for none.' },
      lines: { type: 'string', description: 'Only these lines of the text, such as "12-480"; empty for all.' },
      chars: { type: 'string', description: 'Only these characters of the text, such as "0-4000"; empty for all.' },
      search: { type: 'string', description: 'Only lines, or messages, with these words; empty for all.' },
    },
    /** @param {Record<string, string>} args @param {Record<string, any>} context */
    async execute(args, { sessionID, abort }) {
      const key = getKey(sessionID)
      if (key === undefined) return 'Nothing of this conversation is stored, so all of it is shown.'
      const { isFine, output } = await runRecall(writeArguments(key, args), abort)
      return isFine ? output : `recall failed: ${output}`
    },
  }
}

/**
 * Return whether `holdfast` is installed and reads the store in which the server keeps the session `key`.
 *
 * @param {string} key
 */
export async function canRecall(key) {
  return (await runRecall([key, '--json'])).isFine
}

/** @param {string} key @param {Record<string, string>} args */
function writeArguments(key, { id, lines, chars, search }) {
  const options = Object.entries({ lines, chars, search }).filter(([, value]) => value)
  return [...options.map(([name, value]) => `--${name}=${value}`), '--', key, ...(id ? [id] : [])]
}

/**
 * @param {string[]} args
 * @param {AbortSignal} [signal]
 * @returns {Promise<{ isFine: boolean, output: string }>}
 */
function runRecall(args, signal) {
  return new Promise(resolve => {
    const options = { timeout: TIMEOUT_MS, maxBuffer: MAX_BYTES, signal }
    execFile('holdfast', ['recall', ...args], options, (error, stdout, stderr) => {
      resolve({ isFine: !error, output: error ? stderr.trim() || error.message : stdout })
    })
  })
}
