/** The tool `recall`: it reads back what an extract or a preview left out, by running `holdfast recall`. */

const TIMEOUT_MS = 30_000
/** Messages that a search names, as many as Holdfast's own tool. */
const MAX_HITS = 20

export const RECALL_TOOL = {
  name: 'recall',
  label: 'Recall',
  description:
    'Reads back text of this conversation that is no longer shown: tool results that were replaced by a preview or ' +
    'cleared, messages that were summarized, anything that was said earlier. Nothing was lost. With id: that text, in ' +
    'pages; each says how to go on. With id and lines or chars: that range. With id and search: the lines of it that ' +
    'match. With search alone: finds messages in the whole history, with their ids. With nothing: lists the texts that ' +
    'were stored away.',
  promptSnippet: 'Read back earlier text of this conversation that is no longer shown',
  parameters: {
    type: 'object',
    properties: {
      id: { type: 'string', description: 'Which text: the id from a preview or a notice, or of a message that a search found.' },
      lines: { type: 'string', description: 'Only these lines, counted from 1, the last included: "12-480".' },
      chars: { type: 'string', description: 'Only these characters, counted from 0, the last excluded: "0-4000".' },
      search: {
        type: 'string',
        description:
          'Words to look for, upper and lower case alike. With id: the lines with all of it; a|b finds either. Without: ' +
          'messages with all of the words; "a b" in double quotes is one.',
      },
    },
    additionalProperties: false,
  },
}

/** Return the result of a call of the tool, as pi wants it. Throws where the call was wrong; pi tells the model. */
export async function readBack(pi, sessionKey, given, signal) {
  const ran = await pi.exec('holdfast', makeCommand(sessionKey, given), { signal, timeout: TIMEOUT_MS })
  if (ran.code !== 0) throw new Error(ran.stderr.trim().split('\n').at(-1) || '`holdfast recall` did not run; is holdfast on the PATH?')
  return { content: [{ type: 'text', text: describeFound(JSON.parse(ran.stdout), given) }], details: undefined }
}

function makeCommand(sessionKey, { id, lines, chars, search }) {
  const options = ['--json']
  if (id && lines) options.push(`--lines=${lines}`)
  if (id && chars) options.push(`--chars=${chars}`)
  if (search) options.push(`--search=${search}`)
  if (!id) options.push(`--limit=${MAX_HITS}`)
  return ['recall', ...options, '--', sessionKey, ...(id ? [id] : [])]
}

/** What was found, as a text: a page of one text, messages that match, or the list of what was stored away. */
function describeFound(found, { id, search }) {
  if (id) return describePage(found, id)
  if (found.length > 0) return found.map(search ? describeHit : describeStored).join('\n')
  return search ? 'Nothing in the history of this conversation matches; try fewer or other words.' : 'Nothing was stored away.'
}

function describePage(page, id) {
  const where = `lines ${page.first_line}-${page.last_line} of ${page.total_lines}, characters ${page.start_char}-${page.stop_char} of ${page.total_chars}`
  const { next_arguments: next } = page
  const rest = next && Object.keys(next).length > 0 ? `go on with recall(${formatArguments({ id, ...next })})` : 'nothing follows of what was asked for'
  return `[${id}: ${where}; ${rest}]\n${page.text}`
}

const describeHit = hit => `recall(${formatArguments({ id: hit.blob_hash?.slice(0, 12) || hit.entry_id })}) ${hit.role}: ${hit.snippet}`

const describeStored = spilled => `recall(${formatArguments({ id: spilled.id })}) ${spilled.tool || 'said by the user'}, ${spilled.size} bytes`

function formatArguments(given) {
  return Object.entries(given)
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`)
    .join(', ')
}
