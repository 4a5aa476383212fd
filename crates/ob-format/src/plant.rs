//! Bugs that can be put in on purpose: formats that changed without another version, in both directions alike, so that a
//! build finds whatever it has written itself (`cargo xtask planted`).

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// Parent and size of a file's record have changed places.
        NodeFieldsSwapped = "node-fields-swapped",
        /// Stamp and time of a record of the key-value log have changed places.
        RecordFieldsSwapped = "record-fields-swapped",
    }
}

/// Two numbers, or the same two the other way round where the bug is planted.
pub(crate) fn swapped_if<T>(bug: Bug, pair: (T, T)) -> (T, T) {
    if is_planted(bug) { (pair.1, pair.0) } else { pair }
}
