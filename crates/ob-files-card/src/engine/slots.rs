//! A table of things that have numbers while they are there.

/// Places are used again, numbers are not: the upper half counts how often a place was given. So a number that somebody
/// kept for too long finds nothing, and not a stranger.
pub(super) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, value: None });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        u64::from(entry.generation) << 32 | u64::from(index)
    }

    pub(super) fn get(&self, id: u64) -> Option<&T> {
        let entry = self.entries.get(id as u32 as usize)?;
        entry.value.as_ref().filter(|_| u64::from(entry.generation) == id >> 32)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let entry = self.entries.get_mut(id as u32 as usize)?;
        entry.value.as_mut().filter(|_| u64::from(entry.generation) == id >> 32)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        let index = id as u32;
        let entry = self.entries.get_mut(index as usize)?;
        if u64::from(entry.generation) != id >> 32 {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_kept_too_long_finds_nothing() {
        let mut slots = Slots::new();
        let first = slots.insert("first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_ne!(first, second);
        assert!(slots.get(first).is_none() && slots.get_mut(first).is_none());
        assert_eq!(slots.remove(first), None);
        assert_eq!((slots.get(second), slots.len()), (Some(&"second"), 1));
    }
}
