/** The tool by which the model reads back what it is not shown. */

const DESCRIPTION =
  'Read back what is not shown of this conversation: the whole text of a preview, a placeholder or a summarized message. ' +
  'Give id for one text (with search, lines or chars for a part of it), search alone to find messages, nothing for a list.'

/** Return the tool for one session. It is called `recall`, since previews and extracts name it so. */
export function makeRecallTool(server, sessionId) {
  return {
    name: 'recall',
    label: 'Recall',
    description: DESCRIPTION,
    // The model is told to call it by this name, so it must not be hidden behind OpenClaw's tool search.
    catalogMode: 'direct-only',
    parameters: {
      type: 'object',
      additionalProperties: false,
      properties: {
        id: { type: 'string', description: 'The id in a preview, an extract or a list.' },
        search: { type: 'string', description: 'Words to find; in one text a|b finds either.' },
        lines: { type: 'string', description: 'Lines, counted from 1: 12-480.' },
        chars: { type: 'string', description: 'Characters, counted from 0: 0-4000.' },
        page: { type: 'integer', minimum: 1, description: 'The page of a long answer, from 1.' },
      },
    },
    async execute(_callId, args, signal) {
      try {
        const { text, isError } = await server.recall(sessionId ?? '', args ?? {}, signal)
        return { content: [{ type: 'text', text }], details: { isError: isError === true } }
      } catch (error) {
        const text = `recall does not work now: ${error.message}. Go on with what is shown.`
        return { content: [{ type: 'text', text }], details: { isError: true } }
      }
    },
  }
}
