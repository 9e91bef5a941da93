/** The tool `recall`: `/v1/recall` reads back what an extract or a preview left out. */

export const RECALL_TOOL = {
  name: 'recall', // previews and extracts name it so
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
      page: { type: 'integer', description: 'Which page of what was asked for, counted from 1.' },
    },
    additionalProperties: false,
  },
}

/** Return the result of a call of the tool, as pi wants it. What was wrong with the call is told to the model. */
export async function readBack(server, names, given, signal) {
  const { text, isError } = await server.post('/v1/recall', { ...names, ...given }, signal)
  if (typeof text !== 'string') throw new Error('Holdfast gave no text; nothing was read back')
  return { content: [{ type: 'text', text }], details: undefined, isError: isError === true }
}
