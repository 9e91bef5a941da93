import { buildSessionContext } from 'openclaw/plugin-sdk/agent-sessions'
import { buildMemorySystemPromptAddition, delegateCompactionToRuntime } from 'openclaw/plugin-sdk/core'
import { readSessionTranscriptEvents } from 'openclaw/plugin-sdk/session-transcript-runtime'

import { HoldfastEngine } from './engine.js'
import { makeRecallTool } from './recall.js'
import { HoldfastServer } from './server.js'

const host = {
  /** Return all messages of the session, from its last reset or summary of OpenClaw on. */
  async readTranscript({ sessionId, sessionKey, sessionTarget, agentId }) {
    const owner = sessionTarget?.agentId ?? agentId ?? sessionKey?.match(/^agent:([^:]+):/)?.[1]
    const events = await readSessionTranscriptEvents({ agentId: owner, sessionKey, sessionId })
    return buildSessionContext(events).messages
  },

  delegateCompaction: delegateCompactionToRuntime,

  describeMemory({ availableTools, citationsMode, sessionKey }) {
    return buildMemorySystemPromptAddition({
      availableTools: availableTools ?? new Set(),
      citationsMode,
      agentSessionKey: sessionKey,
    })
  },
}

const saidTexts = new Set()

export default {
  id: 'holdfast',
  name: 'Holdfast',
  description: 'Keeps long conversations inside the window of the model',
  kind: 'context-engine',
  register(api) {
    const server = new HoldfastServer(api.pluginConfig)
    const say = text => {
      if (!saidTexts.has(text)) api.logger.warn(text)
      saidTexts.add(text)
    }
    api.registerContextEngine('holdfast', () => new HoldfastEngine(server, host, say))
    api.registerTool(({ sessionId }) => makeRecallTool(server, sessionId), { name: 'recall' })
  },
}
