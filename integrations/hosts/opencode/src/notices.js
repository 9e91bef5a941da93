/** Say things to the user: in opencode's interface, if there is one, and in its log. */

/**
 * @param {Record<string, any>} client opencode's client
 */
export function createNotices(client) {
  const said = new Set()

  /** @param {string} message @param {'info' | 'warning'} variant */
  function say(message, variant) {
    const level = variant === 'warning' ? 'warn' : 'info'
    // Nothing waits for these: an interface that is not there, or a log that fails, must not hold up a request.
    attempt(() => client.tui.showToast({ body: { title: 'Holdfast', message, variant } }))
    attempt(() => client.app.log({ body: { service: 'holdfast', level, message } }))
  }

  /** Say `message` if this process has not said it yet. @param {string} message */
  function sayOnce(message, variant = 'warning') {
    if (said.has(message)) return
    said.add(message)
    say(message, variant)
  }

  return { say, sayOnce }
}

/** @param {() => Promise<unknown>} action */
async function attempt(action) {
  try {
    await action()
  } catch {
    // The session matters more than what was to be said about it.
  }
}
