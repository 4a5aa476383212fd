//! What a store of strings answers: a map, and the commands that every client uses.

use std::collections::HashMap;

use ob_sim::Rng;

use super::support::resp::Value;

/// Keys that are read, and keys that are changed, once all have been set: the others are the card's before long.
const KEYS: u64 = 24;
const CHANGED: u64 = 12;

/// A map in memory.
#[derive(Debug, Default)]
pub(crate) struct Model {
    values: HashMap<Vec<u8>, Vec<u8>>,
}

impl Model {
    pub(crate) fn apply(&mut self, words: &[Vec<u8>]) -> Value {
        let [name, arguments @ ..] = words else { panic!("no command") };
        let key = arguments.first();
        let found = key.and_then(|key| self.values.get(key));
        let number = |len: usize| Value::Number(i64::try_from(len).unwrap());
        match (name.as_slice(), arguments) {
            (b"GET", [_]) => value(found),
            (b"STRLEN", [_]) => number(found.map_or(0, Vec::len)),
            (b"EXISTS", keys) => number(keys.iter().filter(|key| self.values.contains_key(*key)).count()),
            (b"MGET", keys) => Value::Many(keys.iter().map(|key| value(self.values.get(key))).collect()),
            (b"GETRANGE", [_, _, _]) => Value::bytes(
                &found.map_or(&[][..], Vec::as_slice)[..found.map_or(0, |value| value.len().min(8))],
            ),
            (b"SET", [key, value]) => {
                self.values.insert(key.clone(), value.clone());
                Value::ok()
            }
            (b"MSET", pairs) => {
                for pair in pairs.chunks_exact(2) {
                    self.values.insert(pair[0].clone(), pair[1].clone());
                }
                Value::ok()
            }
            (b"DEL", keys) => number(keys.iter().filter(|key| self.values.remove(*key).is_some()).count()),
            (b"APPEND", [key, more]) => {
                let value = self.values.entry(key.clone()).or_default();
                value.extend_from_slice(more);
                number(value.len())
            }
            (b"INCR", [key]) => self.increment(key),
            (b"ECHO", [text]) => Value::bytes(text),
            (b"PING", []) => Value::Status("PONG".to_owned()),
            (b"NOSUCH", []) => {
                Value::Error("ERR unknown command 'NOSUCH', with args beginning with: ".to_owned())
            }
            _ => panic!("the model does not know {words:?}"),
        }
    }

    fn increment(&mut self, key: &[u8]) -> Value {
        let value = self.values.entry(key.to_vec()).or_insert_with(|| b"0".to_vec());
        match std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()) {
            Some(number) => {
                *value = (number + 1).to_string().into_bytes();
                Value::Number(number + 1)
            }
            None => Value::Error("ERR value is not an integer or out of range".to_owned()),
        }
    }
}

fn value(found: Option<&Vec<u8>>) -> Value {
    found.map_or(Value::Nothing, Value::bytes)
}

/// One of the commands that the model knows, more often a read than a change.
pub(crate) fn any_request(rng: &mut Rng, is_first_round: bool) -> Vec<Vec<u8>> {
    let changed_max = if is_first_round { KEYS } else { CHANGED };
    let key = |rng: &mut Rng| format!("key:{}", rng.below(KEYS)).into_bytes();
    let changed = |rng: &mut Rng| format!("key:{}", rng.below(changed_max)).into_bytes();
    let mut words: Vec<Vec<u8>> = Vec::new();
    let name = *rng.choose(COMMANDS).unwrap();
    words.push(name.as_bytes().to_vec());
    match name {
        "GET" | "STRLEN" => words.push(key(rng)),
        "EXISTS" | "MGET" => {
            let count = 1 + rng.below(3);
            words.extend((0..count).map(|_| key(rng)));
        }
        "DEL" => words.push(changed(rng)),
        "GETRANGE" => words.extend([key(rng), b"0".to_vec(), b"7".to_vec()]),
        "SET" => words.extend([changed(rng), any_value(rng)]),
        "MSET" => {
            // Of a key that is named twice, the last value counts.
            let (first, few) = (rng.below(changed_max), 1 + rng.below(3));
            for offset in 0..3 {
                words.push(format!("key:{}", (first + offset % few) % changed_max).into_bytes());
                words.push(any_value(rng));
            }
        }
        "APPEND" => words.extend([changed(rng), b"more".to_vec()]),
        "INCR" => words.push(format!("number:{}", rng.below(4)).into_bytes()),
        "ECHO" => words.push(any_value(rng)),
        _ => {}
    }
    words
}

const COMMANDS: &[&str] = &[
    "GET", "GET", "GET", "GET", "GET", "GET", "MGET", "STRLEN", "EXISTS", "GETRANGE", "SET", "SET", "MSET",
    "DEL", "APPEND", "INCR", "ECHO", "PING", "NOSUCH",
];

/// Mostly short, sometimes long enough to fill every buffer on its way.
fn any_value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(100) {
        0 => 300 << 10,
        1..=5 => rng.below(40_000),
        _ => rng.below(100),
    };
    let mut value = vec![0; usize::try_from(len).unwrap()];
    rng.fill(&mut value);
    value
}
