/** The tool with which the model reads back what its requests no longer show. */

import { askHoldfast } from './server.js'

const DESCRIPTION = `Reads back text of this conversation that is no longer shown: tool results that were replaced by a \
preview or cleared, messages that were summarized, anything that was said earlier. Nothing was lost. With id: a page of \
that text. With id and lines or chars: that range. With id and search: the lines of it that match. With search alone: \
finds messages in the whole history, with their ids. With nothing: lists the texts that were stored away.`

export const recallTool = {
  description: DESCRIPTION,
  // opencode declares all arguments as required, so each says what stands for "not given".
  args: {
    id: { type: 'string', description: 'The id from a preview, a notice or a search; empty for none.' },
    lines: { type: 'string', description: 'Only these lines, counted from 1, the last included: "12-480"; empty for all.' },
    chars: { type: 'string', description: 'Only these characters, counted from 0, the last excluded: "0-4000"; empty for all.' },
    search: { type: 'string', description: 'Words to look for: a|b finds either, a.*b both on one line; empty for none.' },
    page: { type: 'integer', description: 'Which page, counted from 1.' },
  },

  /** @param {Record<string, any>} args @param {{ sessionID: string }} context */
  async execute({ id, lines, chars, search, page }, { sessionID }) {
    const place = { client: 'opencode', session: sessionID }
    try {
      const call = { ...place, id: writeText(id), lines: writeText(lines), chars: writeText(chars), search: writeText(search) }
      const { text } = await askHoldfast('/v1/recall', { ...call, page: Number.isInteger(page) && page > 0 ? page : 1 }, 'text')
      return text
    } catch (error) {
      return `Nothing can be read back now: ${error instanceof Error ? error.message : error}`
    }
  },
}

/** Models leave arguments out, and write ids of digits as numbers. @param {unknown} value */
function writeText(value) {
  return value === undefined || value === null ? '' : String(value)
}
