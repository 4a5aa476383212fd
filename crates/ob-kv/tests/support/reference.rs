//! The commands once more, on a plain map: what a client should see.

use std::collections::BTreeMap;

/// What a key is: its value, and when it is gone.
pub(crate) type State = Option<(Vec<u8>, Option<u64>)>;

/// The map, and what has become of each key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reference {
    pub(crate) keys: BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>,
    /// What each key was made since the last recovery, with the stamp that made it; the first without one.
    pub(crate) versions: BTreeMap<Vec<u8>, Vec<(u64, State)>>,
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn nil() -> Vec<u8> {
    b"$-1\r\n".to_vec()
}

fn number(value: i64) -> Vec<u8> {
    format!(":{value}\r\n").into_bytes()
}

fn ok() -> Vec<u8> {
    b"+OK\r\n".to_vec()
}

fn parsed(bytes: &[u8]) -> Option<i64> {
    let value: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (value.to_string().as_bytes() == bytes).then_some(value)
}

const NOT_A_NUMBER: &[u8] = b"-ERR value is not an integer or out of range\r\n";

impl Reference {
    /// Goes on from what was recovered.
    pub(crate) fn of(keys: BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>) -> Self {
        Self { keys, versions: BTreeMap::new() }
    }

    pub(crate) fn get(&self, key: &[u8], now: u64) -> Option<&(Vec<u8>, Option<u64>)> {
        self.keys.get(key).filter(|(_, expires)| expires.is_none_or(|expires| expires >= now))
    }

    fn change(&mut self, stamp: u64, key: &[u8], state: State) {
        let before = self.keys.get(key).cloned();
        let versions = self.versions.entry(key.to_vec()).or_insert_with(|| vec![(0, before)]);
        versions.push((stamp, state.clone()));
        match state {
            Some(state) => self.keys.insert(key.to_vec(), state),
            None => self.keys.remove(key),
        };
    }

    /// The reply to a request, which it applies; nothing if any would do.
    pub(crate) fn apply(&mut self, now: u64, stamp: u64, request: &[Vec<u8>]) -> Option<Vec<u8>> {
        let name = String::from_utf8(request[0].to_ascii_lowercase()).unwrap();
        let key = request.get(1).cloned().unwrap_or_default();
        let keys = || request[1..].iter();
        let old = self.get(&key, now).cloned();
        let value_or_nil = |state: &State| state.as_ref().map_or_else(nil, |(value, _)| bulk(value));
        Some(match name.as_str() {
            "get" => value_or_nil(&old),
            "strlen" => number(old.map_or(0, |(value, _)| value.len() as i64)),
            "exists" => number(keys().filter(|key| self.get(key, now).is_some()).count() as i64),
            "pttl" => number(match old {
                None => -2,
                Some((_, None)) => -1,
                Some((_, Some(expires))) => (expires - now) as i64,
            }),
            "mget" => {
                let values = keys().map(|key| value_or_nil(&self.get(key, now).cloned()));
                [format!("*{}\r\n", request.len() - 1).into_bytes(), values.collect::<Vec<_>>().concat()]
                    .concat()
            }
            "set" => self.set(now, stamp, request, &old),
            "mset" => {
                for pair in request[1..].chunks(2) {
                    self.change(stamp, &pair[0], Some((pair[1].clone(), None)));
                }
                ok()
            }
            "getdel" | "del" => {
                let mut removed = 0;
                for key in request[1..].iter() {
                    if self.get(key, now).is_some() {
                        self.change(stamp, key, None);
                        removed += 1;
                    }
                }
                if name == "del" { number(removed) } else { value_or_nil(&old) }
            }
            "append" | "incr" | "pexpire" | "persist" => self.modify(now, stamp, &name, request, old),
            "flushall" => {
                let keys: Vec<Vec<u8>> = self.keys.keys().cloned().collect();
                for key in keys {
                    self.change(stamp, &key, None);
                }
                ok()
            }
            _ => return None,
        })
    }

    /// Commands that make a key another one by what it is.
    fn modify(&mut self, now: u64, stamp: u64, name: &str, request: &[Vec<u8>], old: State) -> Vec<u8> {
        let key = request[1].clone();
        match name {
            "append" => {
                let (mut value, expires) = old.unwrap_or_default();
                value.extend_from_slice(&request[2]);
                self.change(stamp, &key, Some((value.clone(), expires)));
                number(value.len() as i64)
            }
            "incr" => {
                let (value, expires) = old.unwrap_or_else(|| (b"0".to_vec(), None));
                let Some(sum) = parsed(&value).and_then(|value| value.checked_add(1)) else {
                    return NOT_A_NUMBER.to_vec();
                };
                self.change(stamp, &key, Some((sum.to_string().into_bytes(), expires)));
                number(sum)
            }
            "pexpire" => {
                let by = parsed(&request[2]).unwrap();
                if let Some((value, _)) = old.clone() {
                    let expires = now as i64 + by;
                    let state = (by > 0).then_some((value, Some(expires as u64)));
                    self.change(stamp, &key, state);
                }
                number(i64::from(old.is_some()))
            }
            "persist" => {
                let is_expiring = matches!(old, Some((_, Some(_))));
                if let (true, Some((value, _))) = (is_expiring, old) {
                    self.change(stamp, &key, Some((value, None)));
                }
                number(i64::from(is_expiring))
            }
            _ => unreachable!("{name}"),
        }
    }

    /// `SET key value [option] [time]`, with one option at most.
    fn set(&mut self, now: u64, stamp: u64, request: &[Vec<u8>], old: &State) -> Vec<u8> {
        let (key, value) = (&request[1], request[2].clone());
        let option = request.get(3).map(|option| option.to_ascii_lowercase()).unwrap_or_default();
        let expires = match option.as_slice() {
            b"px" => Some(now + parsed(&request[4]).unwrap() as u64),
            b"keepttl" => old.as_ref().and_then(|(_, expires)| *expires),
            _ => None,
        };
        let is_refused = match option.as_slice() {
            b"nx" => old.is_some(),
            b"xx" => old.is_none(),
            _ => false,
        };
        if !is_refused {
            self.change(stamp, key, Some((value, expires)));
        }
        match (option.as_slice(), is_refused) {
            (b"get", _) => old.as_ref().map_or_else(nil, |(value, _)| bulk(value)),
            (_, true) => nil(),
            (_, false) => ok(),
        }
    }
}
