//! What clients are told when something cannot be done, in Redis' words where Redis has any.

use std::borrow::Cow;

use super::ops::LogFailure;

/// Why a request is not applied: the text of the error that answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) Cow<'static, str>);

const fn fixed(text: &'static str) -> Refusal {
    Refusal(Cow::Borrowed(text))
}

pub(crate) const SYNTAX: Refusal = fixed("ERR syntax error");
pub(crate) const NOT_AN_INTEGER: Refusal = fixed("ERR value is not an integer or out of range");
pub(crate) const INCREMENT_OVERFLOW: Refusal = fixed("ERR increment or decrement would overflow");
pub(crate) const DECREMENT_OVERFLOW: Refusal = fixed("ERR decrement would overflow");
pub(crate) const TOO_LONG: Refusal = fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
pub(crate) const KEY_TOO_LONG: Refusal = fixed("ERR key exceeds maximum allowed size");
pub(crate) const EMPTY_KEY: Refusal = fixed("ERR empty keys are not supported");
pub(crate) const REQUEST_TOO_LONG: Refusal = fixed("ERR request exceeds a part of the log");
pub(crate) const REPLY_TOO_LONG: Refusal = fixed("ERR reply exceeds maximum allowed size");
pub(crate) const OUT_OF_MEMORY: Refusal = fixed("OOM command not allowed when used memory > 'maxmemory'.");
/// Clients go by the first word, which tells them what holds here as well: what adds data is refused, what reads or removes is not.
pub(crate) const OUT_OF_SPACE: Refusal = fixed("OOM command not allowed when the log has no space left.");
pub(crate) const NOT_AUTHENTICATED: Refusal = fixed("NOAUTH Authentication required.");
pub(crate) const NO_TRANSACTIONS: Refusal = fixed("ERR transactions are not supported");
pub(crate) const TRANSACTION_ABORTED: Refusal =
    fixed("EXECABORT Transaction discarded because of previous errors.");
pub(crate) const INVALID_CURSOR: Refusal = fixed("ERR invalid cursor");
pub(crate) const PATTERN_TOO_COSTLY: Refusal =
    fixed("ERR the pattern takes too long to compare; to SCAN with a smaller COUNT helps");
pub(crate) const OPTIONS_NX: Refusal =
    fixed("ERR NX and XX, GT or LT options at the same time are not compatible");
pub(crate) const OPTIONS_GT_LT: Refusal = fixed("ERR GT and LT options at the same time are not compatible");

/// A time that cannot be.
pub(crate) fn invalid_expire(command: &str) -> Refusal {
    Refusal(format!("ERR invalid expire time in '{command}' command").into())
}

/// Nothing can be written any more.
pub(crate) fn read_only(failure: LogFailure) -> Refusal {
    Refusal(format!("MISCONF Errors writing to the log: {failure}").into())
}

/// A record could not be read.
pub(crate) fn unreadable(why: impl std::fmt::Display) -> Refusal {
    Refusal(format!("ERR a record could not be read: {why}").into())
}

/// The command takes other numbers of arguments.
pub(crate) fn wrong_arity(name: &str) -> Refusal {
    Refusal(format!("ERR wrong number of arguments for '{name}' command").into())
}

/// Nobody knows this command.
pub(crate) fn unknown_command<'a>(mut arguments: impl Iterator<Item = &'a [u8]>) -> Refusal {
    const SHOWN_MAX: usize = 128;
    let name = arguments.next().unwrap_or_default();
    let mut shown = Vec::new();
    for argument in arguments {
        if shown.len() >= SHOWN_MAX {
            break;
        }
        let left = SHOWN_MAX - shown.len();
        shown.push(b'\'');
        shown.extend(argument.iter().take(left));
        shown.extend_from_slice(b"' ");
    }
    let name = name.get(..name.len().min(SHOWN_MAX)).unwrap_or_default();
    let (name, shown) = (String::from_utf8_lossy(name), String::from_utf8_lossy(&shown));
    Refusal(format!("ERR unknown command '{name}', with args beginning with: {shown}").into())
}

/// A command whose second word is not known.
pub(crate) fn unknown_subcommand(command: &str, subcommand: &[u8]) -> Refusal {
    let shown = subcommand.get(..subcommand.len().min(128)).unwrap_or_default();
    let (shown, command) = (String::from_utf8_lossy(shown), command.to_ascii_uppercase());
    Refusal(format!("ERR unknown subcommand '{shown}'. Try {command} HELP.").into())
}

/// Any other.
pub(crate) fn other(text: String) -> Refusal {
    Refusal(text.into())
}
