//! `[split]`.

use toml::de::DeValue;

use super::super::SplitConfig;
use super::super::split::Magic;
use super::{Parsed, Problem, Reader, SpannedKey, SpannedValue, byte_size, truth};

pub(super) const SPLIT_KEYS: &[&str] = &["enabled", "magic", "memory"];

/// Below that a few messages would be all.
const SPLIT_MEMORY: (u64, u64) = (16 << 20, 16 << 30);

impl Reader<'_> {
    pub(super) fn split(&mut self, split: &mut SplitConfig, key: &SpannedKey<'_>, value: &SpannedValue<'_>) {
        let memory = |value: &DeValue<'_>| byte_size(value, SPLIT_MEMORY);
        match key.get_ref().as_ref() {
            "enabled" => self.set("split", key, value, &mut split.enabled, truth),
            "magic" => self.set("split", key, value, &mut split.magic, magic),
            "memory" => self.set("split", key, value, &mut split.memory, memory),
            _ => self.unknown("split", key),
        }
    }
}

fn magic(value: &DeValue<'_>) -> Parsed<Magic> {
    let hint = "two capital letters, such as \"OX\"";
    let DeValue::String(text) = value else {
        return Err(Problem::new("expected what messages begin with", hint));
    };
    Magic::parse(text).ok_or_else(|| Problem::new(format!("no messages can begin with \"{text}\""), hint))
}
