//! What the store tells of itself: counts for `status`, texts for `INFO`, settings for `CONFIG GET`.

use std::fmt::Write;
use std::time::Duration;

use super::Durability;
use super::room::Space;
use super::session::REDIS_VERSION;

/// What has happened since the store was opened, and how it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that were applied, or are waiting to be.
    pub requests: u64,
    /// Requests that were refused with an error.
    pub errors: u64,
    /// Keys that were looked for and found by requests that read.
    pub hits: u64,
    /// Keys that were looked for and not found by requests that read.
    pub misses: u64,
    /// Records that were read from the device for requests.
    pub records_read: u64,
    /// Records that could not be read for requests; `SCAN` leaves their keys out.
    pub records_unreadable: u64,
    /// Requests that had to wait behind another one on the same key.
    pub requests_queued: u64,
    /// Records whose key was another one than the index had said: two keys with one hash.
    pub hash_collisions: u64,
    /// Keys that were found to have expired.
    pub keys_expired: u64,
    /// Records with an expiry that the list of them had no room for.
    pub expiries_unlisted: u64,
    /// Changes that were made in the place of one that was not written yet.
    pub records_replaced: u64,
    /// Records that compaction has copied.
    pub records_copied: u64,
    /// Parts that compaction has removed.
    pub parts_removed: u64,
    /// Parts that compaction found damaged. There is no more compaction behind one.
    pub parts_damaged: u64,
    /// Reads for compaction that failed. They are tried again.
    pub sweeps_failed: u64,
    /// Keys there are.
    pub keys: u64,
    /// Keys that are gone some day.
    pub keys_expiring: u64,
    /// Bytes of memory that the index takes, with the list of what expires when.
    pub index_len: usize,
    /// Bytes of the log in memory.
    pub log_memory_len: usize,
    /// Bytes from the begin of the log to its end.
    pub log_len: u64,
    /// Bytes of it that are current.
    pub log_live_len: u64,
    /// Bytes that it may still grow by, if that was measured.
    pub log_room_len: Option<u64>,
    /// How it stands with the device's space.
    pub space: Space,
    /// Changes that were refused because there was too little of it.
    pub refused_for_space: u64,
    /// Bytes of records at its end that recovery would not find yet.
    pub log_unsettled_len: u64,
    /// Requests that wait for a read, or for another request.
    pub requests_waiting: usize,
    /// Bytes of them, of what they read, and of answers that wait to leave.
    pub waiting_len: usize,
}

impl Stats {
    /// Counts anew what clients do. What has happened to the log stays told.
    pub(crate) fn reset(&mut self) {
        let Self { records_copied, parts_removed, parts_damaged, sweeps_failed, refused_for_space, .. } =
            *self;
        *self = Self {
            records_copied,
            parts_removed,
            parts_damaged,
            sweeps_failed,
            refused_for_space,
            ..Self::default()
        };
    }
}

/// What connections' commands have to know of the store.
pub(crate) struct Facts<'a> {
    pub(crate) password: Option<&'a str>,
    pub(crate) durability: Durability,
    pub(crate) index_len_max: usize,
    pub(crate) value_len_max: usize,
    pub(crate) stats: Stats,
    pub(crate) uptime: Duration,
    pub(crate) is_read_only: bool,
}

impl Facts<'_> {
    /// What `CONFIG GET` knows.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let appendfsync = match self.durability {
            Durability::Always => "always",
            Durability::EverySecond => "everysec",
            Durability::No => "no",
        };
        vec![
            ("save", String::new()),
            ("appendonly", "yes".to_owned()),
            ("appendfsync", appendfsync.to_owned()),
            ("maxmemory", self.index_len_max.to_string()),
            ("maxmemory-policy", "noeviction".to_owned()),
            ("databases", "1".to_owned()),
            ("proto-max-bulk-len", self.value_len_max.to_string()),
            ("timeout", "0".to_owned()),
        ]
    }

    /// What `INFO` says, of the sections that were named, or of all.
    pub(crate) fn info<'a>(&self, sections: impl Iterator<Item = &'a [u8]>) -> String {
        let wanted: Vec<Vec<u8>> = sections.take(16).map(<[u8]>::to_ascii_lowercase).collect();
        let is_all = wanted.iter().any(|name| matches!(name.as_slice(), b"all" | b"default" | b"everything"));
        let stats = &self.stats;
        let sections: [(&str, Vec<(&str, String)>); 5] = [
            (
                "Server",
                vec![
                    ("redis_version", REDIS_VERSION.to_owned()),
                    ("redis_mode", "standalone".to_owned()),
                    ("server_name", "outboard".to_owned()),
                    ("uptime_in_seconds", self.uptime.as_secs().to_string()),
                ],
            ),
            (
                "Memory",
                vec![
                    ("used_memory", (stats.index_len + stats.log_memory_len).to_string()),
                    ("used_memory_index", stats.index_len.to_string()),
                    ("used_memory_log", stats.log_memory_len.to_string()),
                    ("maxmemory", self.index_len_max.to_string()),
                    ("maxmemory_policy", "noeviction".to_owned()),
                ],
            ),
            (
                "Persistence",
                vec![
                    ("loading", "0".to_owned()),
                    ("aof_enabled", "1".to_owned()),
                    ("aof_last_write_status", if self.is_read_only { "err" } else { "ok" }.to_owned()),
                    ("log_bytes", stats.log_len.to_string()),
                    ("log_live_bytes", stats.log_live_len.to_string()),
                    ("log_room_bytes", stats.log_room_len.map_or_else(String::new, |len| len.to_string())),
                    ("log_space", stats.space.name().to_owned()),
                    ("log_changes_refused_for_space", stats.refused_for_space.to_string()),
                    ("log_unsettled_bytes", stats.log_unsettled_len.to_string()),
                    ("log_parts_removed", stats.parts_removed.to_string()),
                    ("log_parts_damaged", stats.parts_damaged.to_string()),
                    ("log_sweeps_failed", stats.sweeps_failed.to_string()),
                    ("log_records_copied", stats.records_copied.to_string()),
                ],
            ),
            ("Stats", self.counts()),
            (
                "Keyspace",
                match stats.keys {
                    0 => Vec::new(),
                    keys => vec![("db0", format!("keys={keys},expires={},avg_ttl=0", stats.keys_expiring))],
                },
            ),
        ];
        let mut text = String::new();
        for (name, fields) in sections {
            let is_wanted = wanted.contains(&name.to_ascii_lowercase().into_bytes());
            if !(wanted.is_empty() || is_all || is_wanted) {
                continue;
            }
            // Writing to a string does not fail.
            let _ = write!(text, "{}# {name}\r\n", if text.is_empty() { "" } else { "\r\n" });
            for (field, value) in fields {
                let _ = write!(text, "{field}:{value}\r\n");
            }
        }
        text
    }

    fn counts(&self) -> Vec<(&'static str, String)> {
        let stats = &self.stats;
        vec![
            ("total_commands_processed", stats.requests.to_string()),
            ("total_error_replies", stats.errors.to_string()),
            ("expired_keys", stats.keys_expired.to_string()),
            ("expiries_unlisted", stats.expiries_unlisted.to_string()),
            ("keyspace_hits", stats.hits.to_string()),
            ("keyspace_misses", stats.misses.to_string()),
            ("records_read", stats.records_read.to_string()),
            ("records_unreadable", stats.records_unreadable.to_string()),
            ("requests_queued", stats.requests_queued.to_string()),
            ("hash_collisions", stats.hash_collisions.to_string()),
        ]
    }
}
