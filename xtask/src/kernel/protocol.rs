//! What the guest reports: a line each.

/// A report of the guest.
#[derive(Debug, PartialEq, Eq)]
pub enum Report<'line> {
    /// The guest takes orders; the kernel's release.
    Ready(&'line str),
    /// A step begins.
    Step(&'line str),
    /// It holds.
    Ok(&'line str),
    /// It does not, and the scenario ends.
    Failed(&'line str, &'line str),
    /// The kernel, or the kernel's own target, cannot do this.
    Skipped(&'line str, &'line str),
    /// The guest asks for something to be done to the target, and waits for the answer.
    Please(Vec<&'line str>),
    /// The scenario is over.
    Done,
    /// The guest cannot run scenarios at all.
    Broken(&'line str),
    /// Nothing of the above.
    Unknown(&'line str),
}

impl<'line> Report<'line> {
    /// Reads a line.
    #[must_use]
    pub fn of(line: &'line str) -> Self {
        let line = line.trim();
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, reason) = rest.split_once(": ").unwrap_or((rest, ""));
        match verb {
            "ready" => Self::Ready(rest),
            "step" => Self::Step(rest),
            "ok" => Self::Ok(rest),
            "failed" => Self::Failed(name, reason),
            "skipped" => Self::Skipped(name, reason),
            "please" => Self::Please(rest.split_whitespace().collect()),
            "done" if rest.is_empty() => Self::Done,
            "broken" => Self::Broken(rest),
            _ => Self::Unknown(line),
        }
    }
}

/// The answer to a [`Report::Please`].
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Yes,
    /// The target is the guest's own: it must do that itself.
    Yourself,
    /// It cannot be done, and why.
    No(String),
}

impl Answer {
    /// The line to send.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Yes => "yes".to_owned(),
            Self::Yourself => "yourself".to_owned(),
            Self::No(why) => format!("no {}", why.replace('\n', "; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_report_is_read() {
        assert_eq!(Report::of("ready 6.12\r"), Report::Ready("6.12"));
        assert_eq!(Report::of("step mkfs"), Report::Step("mkfs"));
        assert_eq!(Report::of("ok mkfs"), Report::Ok("mkfs"));
        assert_eq!(Report::of("failed fsck: status 4: bad"), Report::Failed("fsck", "status 4: bad"));
        assert_eq!(Report::of("skipped ana: none"), Report::Skipped("ana", "none"));
        assert_eq!(Report::of("please resize 1 4096"), Report::Please(vec!["resize", "1", "4096"]));
        assert_eq!(Report::of("done"), Report::Done);
        assert_eq!(Report::of("done and dusted"), Report::Unknown("done and dusted"));
        assert_eq!(Report::of(""), Report::Unknown(""));
    }

    #[test]
    fn an_answer_is_one_line() {
        assert_eq!(Answer::No("one\ntwo".to_owned()).line(), "no one; two");
        assert_eq!(Answer::Yes.line(), "yes");
    }
}
