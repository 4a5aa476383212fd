//! One script for two servers, and what they answer differently.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::reply::{Connection, Received, Reply, encoded};
use super::script::{Exchange, Group, Tolerance};

/// How many bytes of a reply are shown.
const SHOWN_MAX: usize = 300;

/// What one group came to.
#[derive(Debug, Default)]
pub struct Comparison {
    /// How many exchanges were compared.
    pub compared: usize,
    /// What was not the same, for people.
    pub differences: Vec<String>,
}

/// Sends a group to both servers, each on a connection of its own that begins with nothing stored.
///
/// # Errors
/// When the oracle does not answer. What the other one does wrong is a difference.
pub fn compare(
    group: &Group,
    oracle_port: u16,
    port: u16,
    greeting: &[Vec<Vec<u8>>],
    is_compared: impl Fn(&Exchange) -> bool,
) -> Result<Comparison> {
    let mut comparison = Comparison::default();
    let mut pair: Option<(Connection, Connection)> = None;
    for exchange in group.exchanges.iter().filter(|exchange| is_compared(exchange)) {
        let (oracle, ours) = match &mut pair {
            Some(pair) => (&mut pair.0, &mut pair.1),
            None => {
                let both = (opened(oracle_port, greeting)?, opened(port, greeting)?);
                let pair = pair.insert(both);
                (&mut pair.0, &mut pair.1)
            }
        };
        comparison.compared += 1;
        let wanted = asked(oracle, exchange).with_context(|| format!("the oracle, {exchange}"))?;
        match asked(ours, exchange) {
            Ok(got) => {
                for (wanted, got) in
                    wanted.iter().zip(&got).filter(|(wanted, got)| !agree(exchange, wanted, got))
                {
                    let mut text = format!("{}, {exchange}\n", group.name);
                    // Writing to a string cannot fail.
                    let _ =
                        write!(text, "    Redis {}\n    ours  {}", shown(&wanted.bytes), shown(&got.bytes));
                    comparison.differences.push(text);
                }
            }
            Err(error) => {
                comparison.differences.push(format!("{}, {exchange}\n    {error:#}", group.name));
                pair = None;
                continue;
            }
        }
        if exchange.closes {
            pair = None;
        }
    }
    Ok(comparison)
}

/// A connection on which these requests were answered, each without an error.
fn opened(port: u16, greeting: &[Vec<Vec<u8>>]) -> Result<Connection> {
    let mut connection = Connection::open(port)?;
    for words in greeting {
        connection.send(&encoded(words))?;
        let answer = connection.receive()?;
        anyhow::ensure!(answer.reply.kind() != b'-', "port {port} says {}", shown(&answer.bytes));
    }
    Ok(connection)
}

fn asked(connection: &mut Connection, exchange: &Exchange) -> Result<Vec<Received>> {
    connection.send(&exchange.bytes)?;
    let replies = (0..exchange.replies).map(|_| connection.receive()).collect::<Result<_>>()?;
    if exchange.closes {
        connection.wait_for_end()?;
    }
    Ok(replies)
}

fn agree(exchange: &Exchange, wanted: &Received, got: &Received) -> bool {
    match exchange.tolerance {
        Tolerance::Exact => wanted.bytes == got.bytes,
        Tolerance::Near(distance) => match (wanted.reply.number(), got.reply.number()) {
            (Some(wanted), Some(got)) => wanted.abs_diff(got) <= distance.unsigned_abs(),
            _ => false,
        },
        Tolerance::AnyOrder => sorted(&wanted.reply) == sorted(&got.reply),
        Tolerance::SameKeys => keys(&wanted.reply).is_some() && keys(&wanted.reply) == keys(&got.reply),
        Tolerance::SameKind => wanted.reply.kind() == got.reply.kind(),
        Tolerance::Missing => got.bytes == unknown(&exchange.words),
        Tolerance::Refused => wanted.reply.kind() != b'-' && got.reply.kind() == b'-',
        Tolerance::Anything => wanted.reply.kind() == b'-' || got.reply.kind() != b'-',
    }
}

/// A reply whose replies within, and within those, are in one order.
fn sorted(reply: &Reply) -> Reply {
    match reply {
        Reply::Many(kind, Some(replies)) => {
            let mut replies: Vec<Reply> = replies.iter().map(sorted).collect();
            replies.sort();
            Reply::Many(*kind, Some(replies))
        }
        other => other.clone(),
    }
}

/// The keys of a map, or of an array with keys and values in turn.
fn keys(reply: &Reply) -> Option<(u8, Vec<&Reply>)> {
    match reply {
        Reply::Many(kind, Some(replies)) => Some((*kind, replies.iter().step_by(2).collect())),
        _ => None,
    }
}

/// What Redis says of a command that it does not know.
fn unknown(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = b"-ERR unknown command '".to_vec();
    let (name, rest) = words.split_first().map_or((&[][..], &[][..]), |(name, rest)| (name.as_slice(), rest));
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(b"', with args beginning with: ");
    for word in rest {
        bytes.push(b'\'');
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"' ");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

fn shown(bytes: &[u8]) -> String {
    let more = if bytes.len() > SHOWN_MAX { format!(" … ({} bytes)", bytes.len()) } else { String::new() };
    format!("\"{}\"{more}", bytes.get(..SHOWN_MAX).unwrap_or(bytes).escape_ascii())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;
    use crate::redis::script;

    /// A server that answers whatever comes with one reply after the other, and then ends each connection.
    fn server(replies: &'static [&'static str]) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                for reply in replies {
                    let mut request = [0; 4096];
                    if !matches!(stream.read(&mut request), Ok(1..)) {
                        break;
                    }
                    let _ = stream.write_all(reply.as_bytes());
                }
            }
        });
        port
    }

    fn differences(line: &str, wanted: &'static [&'static str], got: &'static [&'static str]) -> usize {
        let groups = script::parse(&format!("== test\n# On purpose.\n{line}\n")).unwrap();
        let comparison = compare(&groups[0], server(wanted), server(got), &[], |_| true).unwrap();
        assert_eq!(comparison.compared, 1);
        comparison.differences.len()
    }

    #[test]
    fn a_byte_that_differs_is_found() {
        assert_eq!(differences("PING", &["+PONG\r\n"], &["+PONG\r\n"]), 0);
        assert_eq!(differences("PING", &["+PONG\r\n"], &["+PONg\r\n"]), 1);
        assert_eq!(differences("PING", &["+PONG\r\n"], &["$4\r\nPONG\r\n"]), 1);
        assert_eq!(differences("> 2 PING\\r\\n", &["+a\r\n+b\r\n"], &["+b\r\n+a\r\n"]), 2);
    }

    #[test]
    fn a_server_that_ends_is_a_difference_and_so_is_one_that_does_not() {
        assert_eq!(differences("PING", &["+PONG\r\n"], &[]), 1);
        assert_eq!(differences(">close 1 x\\r\\n", &["-no\r\n"], &["-no\r\n"]), 0);
        assert_eq!(differences(">close 1 x\\r\\n", &["-no\r\n"], &["-no\r\n+more\r\n"]), 1);
    }

    #[test]
    fn tolerance_goes_as_far_as_it_says() {
        assert_eq!(differences("@near 5 TTL k", &[":100\r\n"], &[":95\r\n"]), 0);
        assert_eq!(differences("@near 5 TTL k", &[":100\r\n"], &[":94\r\n"]), 1);
        assert_eq!(differences("@near 5 TTL k", &[":1\r\n"], &["-ERR\r\n"]), 1);
        assert_eq!(differences("@order S", &["*2\r\n+a\r\n+b\r\n"], &["*2\r\n+b\r\n+a\r\n"]), 0);
        assert_eq!(differences("@order S", &["*2\r\n+a\r\n+b\r\n"], &["*2\r\n+b\r\n+b\r\n"]), 1);
        assert_eq!(differences("@keys S", &["*2\r\n+a\r\n+b\r\n"], &["*2\r\n+a\r\n+c\r\n"]), 0);
        assert_eq!(differences("@keys S", &["*2\r\n+a\r\n+b\r\n"], &["*2\r\n+c\r\n+b\r\n"]), 1);
        assert_eq!(differences("@kind S", &[":1\r\n"], &[":2\r\n"]), 0);
        assert_eq!(differences("@kind S", &[":1\r\n"], &["+2\r\n"]), 1);
        assert_eq!(differences("@any S", &["+a\r\n"], &[":1\r\n"]), 0);
        assert_eq!(differences("@any S", &["+a\r\n"], &["-ERR\r\n"]), 1);
        assert_eq!(differences("@refused S", &["+a\r\n"], &["-ERR\r\n"]), 0);
        assert_eq!(differences("@refused S", &["+a\r\n"], &["+a\r\n"]), 1);
        assert_eq!(differences("@refused S", &["-a\r\n"], &["-a\r\n"]), 1);
        let unknown = &["-ERR unknown command 'LPUSH', with args beginning with: 'k' 'v' \r\n"];
        assert_eq!(differences("@missing LPUSH k v", &[":1\r\n"], unknown), 0);
        assert_eq!(differences("@missing LPUSH k v", &[":1\r\n"], &[":1\r\n"]), 1);
    }
}
