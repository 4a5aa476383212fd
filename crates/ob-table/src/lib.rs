//! The card's cache table (DDS §6): which keys the card can answer, and with what.
//!
//! ```text
//!   director ── invalidate(key, stamp) ─────┐          before a request that may change the key goes to the host
//!                                           ▼
//!   engine ──────── admit(key, item, stamp) ▶ Table ──▶ lookup(key) ──▶ Hit { item, stamp }    offload engine
//!   (TableWriter, one thread)               ▲                           or None: ask the host
//!                                           └ any number of readers and invalidators, who never wait
//! ```
//!
//! Every request that may change a key has a *stamp*, and stamps grow. A record on the device carries the stamp of the
//! request that made it, and is admitted with it. **A lookup returns an item only if no invalidation of its key with a greater
//! stamp was complete when the lookup began**, whatever was evicted, displaced or refused in between. To find nothing is always
//! allowed: the request goes to the host.
//!
//! The layout, byte by byte, and the rules for those who use the table are in `docs/table.md`.
//!
//! # How it is done
//!
//! Cuckoo hashing: a key is in one of two buckets of five slots, or in an overflow bucket chained to one of them. A hit costs
//! the bucket's header line and one slot line.
//!
//! - The **state** of a slot is 0 when it is free, and else the complement of `stamp << 1 | valid`, so that an invalidation is
//!   one `fetch_min`: it beats what is older, does nothing to what is newer, and leaves a free slot free. (With `fetch_max` on
//!   the word itself a late invalidation would bring a slot to life that was cleared meanwhile.) An entry that is not valid
//!   is a *tombstone*. A slot's key and item are written only while its state is 0, and by the writer only.
//! - The **sequence** of a bucket counts up before a slot of its chain is filled and again after it was published; and when an
//!   overflow bucket leaves the chain. Nobody waits for it to be even: it only tells that something was filled.
//! - The **floor** of a bucket: nothing with a smaller stamp is admitted to it.
//!
//! **Admission**: fill a free slot, publish it as a tombstone of the item's stamp, full fence, look at the floors of both
//! buckets, and make it valid by compare-and-swap. **Displacement**: fill a slot of the other bucket and publish it as a
//! tombstone, full fence, take the old one out by a swap to 0; if what came out is a tombstone, strike the new one with it; if
//! it is valid, look at the floors and make the new one valid. There are never two valid entries of a key. **Eviction**: take
//! the entry out by a swap, raise the floor of its bucket to the stamp that came out.
//!
//! **Clearing**: store the stamp in the one word `cleared` of the table. Whoever finds an entry loads that word afterwards, and has not
//! found it if it is older. The writer admits nothing older from then on, and takes what is older out as it comes across it.
//! (What was not older when the table was cleared, it takes out at once, one by one.)
//!
//! **Invalidation**: note both sequences, strike (`fetch_min`) every entry of the key in sight, look at the sequences again.
//! If they changed, or an entry was taken out under its hands, look again. If something was struck, done. If nothing was
//! there, raise the floor of the first bucket, full fence, and look again; if there is still nothing, done. An invalidator that
//! has looked often enough *hardens* the floors of both buckets, full fence, strikes what is in sight, and is done.
//!
//! # Why it is right
//!
//! Call what becomes of one filling of a slot an *instance*. It is born invalid, becomes valid at most once, and ends when
//! the writer takes it out. A *lineage* is an admitted instance and those that it was moved to, `E0, E1, …`; each is published before
//! its predecessor is taken out, and becomes valid only if the predecessor was valid when it came out. The writer has at most
//! one lineage of a key at a time.
//!
//! *A reader sees whole entries.* It loads the sequence, a state that is valid, the words, and the sequence again. If it saw a
//! word of a later filling, it sees the count before that filling in its second load. If its first load had seen that count
//! already, the state that it loaded next was 0, or published after the words.
//!
//! *Struck in a stable view* (`s` the invalidation's stamp, `r < s` an item's). The instance `C` that was struck is the key's,
//! for had the slot been filled anew between the look at its words and the strike, a sequence had changed. It is not valid and
//! never will be, for the compare-and-swap expects a tombstone of `r`; nor will what it is moved to, which is struck with what
//! came out. Other instances of the lineage that were alive are seen and struck likewise (the next paragraph). A later
//! lineage begins in the place of `C`, where the stamp that came out is compared; or after `C` was evicted, when the floor of
//! one of the two buckets is at least `s`, and admissions look at both.
//!
//! *Nothing there in a stable view, after the floor was raised.* Suppose an `En` of stamp `r` is valid later. Fences order
//! the publication of `E0` before the invalidator's look, or the writer's look at the floor after it was raised; then `E0` had not
//! become valid. So the look came after `E0` was published, and found it taken out, as it found each `Em` either not yet published
//! or taken out. For `En` it is the former. So there are neighbours: `Em` was found taken out and `Em+1` not yet published. Who sees
//! that `Em` was taken out also sees from then on that `Em+1` was published and counted. So the slot of `Em+1` was looked
//! at first, and the second look at its bucket's sequence sees a count that the first did not see: the view was not stable.
//!
//! *Given up.* Let `Em` be the last of the lineage whose fence came before the invalidator's last one. It is in sight of the last
//! strike, and so is its predecessor if that is still valid. If it is struck it stays invalid as above. If it is taken out
//! before, it was moved to `Em+1`, whose fence came later: the look at the floors sees that one is hard and above `r`, and `Em+1`
//! stays invalid. The writer makes a hard floor soft only after it took out everything in that bucket that is older; what could
//! still come there from the other bucket is stopped by the other's floor, or was taken out when that was made soft.
//!
//! *Cleared* with `c`. A lookup that began afterwards sees `c` or more in the word. What is valid with `r < c` is not returned any more, wherever
//! it is moved; nothing is made valid with such a stamp that was not admitted before; and no later lineage has one. An invalidation
//! that strikes what was cleared is kept as any other is: by the slot, and by the floor of its bucket when that is emptied.
//!
//! *All at one instant.* Each entry was valid when it was found in the first pass and still is, the same instance, in the second;
//! so all were valid when the second began. Loads of states acquire: a pass that saw one key's new entry sees the invalidations
//! that came before its admission, and so the clearing if there was one, which the second pass compares all of them with.
//!
//! What is assumed: that a sequence of 32 bits does not come round to the same number (2^31 fillings of one bucket) while
//! one lookup or invalidation is under way.
//!
//! loom runs all of this in small scenes (`tests/loom.rs`), Miri runs over the crate, a model and real threads over tables in
//! which everything happens; and each rule above, left out (`plant.rs`), makes one of them fail.

mod batch;
mod config;
mod displace;
mod memory;
mod overflow;
mod placement;
pub mod plant;
mod state;
mod sync;
mod table;
mod words;
mod writer;

pub use batch::BATCH_MAX;
pub use config::{ConfigError, TableConfig, WhenFull};
pub use table::Table;
pub use words::{Hit, ITEM_BYTES_MAX, Item, KEY_BYTES_MAX, Key, Stamp, WordError};
pub use writer::{Counts, Refused, TableWriter};
