//! `[programs]`: what a service's programs may take.

use ob_programs::Limits;
use serde::Serialize;

/// Limits of each tenant: a service of the card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramsConfig {
    /// Objects.
    pub objects: usize,
    /// Instructions of all its programs together.
    pub instructions: usize,
    /// Fuel of a call: about a nanosecond each.
    pub fuel: u32,
    /// Hundredths of a core.
    pub share: u32,
}

impl Default for ProgramsConfig {
    fn default() -> Self {
        let Limits { objects, instructions, call_fuel, share, .. } = Limits::default();
        Self { objects, instructions, fuel: call_fuel, share: share / 10 }
    }
}

impl ProgramsConfig {
    /// The same, for whoever enforces it.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            objects: self.objects,
            instructions: self.instructions,
            call_fuel: self.fuel,
            share: self.share * 10,
            ..Limits::default()
        }
    }
}
