import type { SessionMessage } from 'claude-code'
import type { Compacted } from './answer'

/**
 * The engine's messages: what Holdfast reads of them, and what becomes of those that it keeps.
 */

/** How a message begins that stands for older ones: Holdfast's extract, or Claude Code's own summary. */
const COMPACTION_OPENINGS = [
  'The conversation before this point was replaced by this extract',
  'This session is being continued from a previous conversation',
]

/**
 * The messages that the model sees, of those that `$.session.messages()` lists.
 *
 * In a terminal the list goes on after a compaction, with what it replaced still there (seen in 2.1.332).
 */
export function takeCurrentMessages(messages: readonly SessionMessage[]): readonly SessionMessage[] {
  const start = messages.findLastIndex(
    ({ role, text }) => role === 'user' && COMPACTION_OPENINGS.some(opening => text.startsWith(opening)),
  )
  return start < 0 ? messages : messages.slice(start)
}

/** What Holdfast reads of a message. The engine's structured results repeat the texts, and are the larger half. */
export function stripMessage(message: SessionMessage): SessionMessage {
  return {
    role: message.role,
    text: message.text,
    toolUses: message.toolUses.map(({ tool_use_id, tool, input }) => ({ tool_use_id, tool, input })),
    ...(message.toolResults !== undefined && {
      toolResults: message.toolResults.map(({ tool_use_id, text, isError }) => ({ tool_use_id, text, isError })),
    }),
    ...(message.handle !== undefined && { handle: message.handle }),
  } as SessionMessage
}

/**
 * The extract, and after it the engine's own objects for the messages that are kept (but see detachResults).
 *
 * The engine takes a message for its own, with thinking and pictures, only if nothing in it differs; so what came back
 * from Holdfast names the messages, and is not used for more.
 */
export function restoreOwnMessages(own: readonly SessionMessage[], compacted: Compacted): SessionMessage[] {
  const [extract, ...kept] = compacted.messages
  if (typeof extract?.text !== 'string' || extract.text === '' || extract.handle !== undefined) {
    throw new Error('its answer has no extract')
  }
  const tail = kept.length === 0 ? [] : own.slice(-kept.length)
  const isTail = tail.length === kept.length && kept.every((message, index) => message.handle === tail[index]?.handle)
  if (!isTail || tail.some(message => message.handle === undefined)) {
    throw new Error('its answer is not of the newest messages')
  }
  return [{ role: 'user', text: extract.text, toolUses: [] }, ...tail.map(detachResults)]
}

/**
 * A message of tool results as one that the engine builds anew from its texts; any other as it is.
 *
 * The engine saves a kept message of results as the child of the call that it had before (seen in 2.1.332). A session
 * that is resumed would go from there into the old branch, as if nothing had been compacted. A message with pictures is
 * kept all the same: what the model sees goes before what a resumed session costs.
 */
function detachResults(message: SessionMessage): SessionMessage {
  const results = message.toolResults ?? []
  if (results.length === 0 || results.some(mayHoldMedia)) return message
  return {
    role: 'user',
    text: message.text,
    toolUses: [],
    toolResults: results.map(({ tool_use_id, text, isError }) => ({ tool_use_id, text, isError })),
  } as SessionMessage
}

/** Whether a result may have pictures: by its structured form, or where it has neither that nor a text. */
function mayHoldMedia({ text, result }: { text: string; result?: unknown }): boolean {
  return result === undefined ? text === '' : holdsMediaBlock(result)
}

function holdsMediaBlock(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  const { type } = value as { type?: unknown }
  if (type === 'image' || type === 'document' || type === 'audio' || type === 'pdf') return true
  return Object.values(value).some(holdsMediaBlock)
}
