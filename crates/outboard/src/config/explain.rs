//! Mistakes in a configuration, explained: what, where, the line itself, and what to do.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One thing wrong in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Which bytes of the text.
    pub span: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// A place in a text, counted from one as editors do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The character within the line.
    pub column: usize,
    /// The whole line.
    pub text: String,
}

impl Place {
    /// The place of a byte offset; an offset beyond the end is the end.
    #[must_use]
    pub fn of(text: &str, offset: usize) -> Self {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &text[..offset];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[offset..].find('\n').map_or(text.len(), |newline| offset + newline);
        Self {
            line: before.matches('\n').count() + 1,
            column: text[start..offset].chars().count() + 1,
            text: text[start..end].trim_end_matches('\r').to_owned(),
        }
    }
}

/// All mistakes of one file, with what is needed to show them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    file: PathBuf,
    text: String,
    mistakes: Vec<Mistake>,
}

impl Explanation {
    /// Puts the mistakes in the order of the text.
    #[must_use]
    pub fn new(file: &Path, text: &str, mut mistakes: Vec<Mistake>) -> Self {
        mistakes.sort_by_key(|mistake| mistake.span.start);
        Self { file: file.to_owned(), text: text.to_owned(), mistakes }
    }

    /// The file they were found in.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The mistakes, each with its place.
    pub fn mistakes(&self) -> impl Iterator<Item = (&Mistake, Place)> {
        self.mistakes.iter().map(|mistake| (mistake, Place::of(&self.text, mistake.span.start)))
    }

    fn write_mistake(
        &self,
        formatter: &mut fmt::Formatter<'_>,
        mistake: &Mistake,
        place: &Place,
    ) -> fmt::Result {
        let number = place.line.to_string();
        let margin = " ".repeat(number.len());
        writeln!(formatter, "{}", mistake.message)?;
        writeln!(formatter, "{margin}--> {}:{}:{}", self.file.display(), place.line, place.column)?;
        writeln!(formatter, "{margin} |")?;
        writeln!(formatter, "{number} | {}", place.text)?;
        // Tabs stay tabs, so that the marks stand below what they mark.
        let indent: String = place
            .text
            .chars()
            .take(place.column - 1)
            .map(|character| if character == '\t' { '\t' } else { ' ' })
            .collect();
        let marked = self.text.get(mistake.span.clone()).unwrap_or_default();
        let length = marked.lines().next().unwrap_or_default().chars().count().max(1);
        write!(formatter, "{margin} | {indent}{}", "^".repeat(length))?;
        if let Some(hint) = &mistake.hint {
            write!(formatter, "\n{margin} = hint: {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (mistake, place)) in self.mistakes().enumerate() {
            if index > 0 {
                formatter.write_str("\n\n")?;
            }
            self.write_mistake(formatter, mistake, &place)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters_from_one() {
        let text = "a = 1\nüb = 2\r\n";
        assert_eq!(Place::of(text, 0), Place { line: 1, column: 1, text: "a = 1".to_owned() });
        let second = text.find("= 2").unwrap();
        assert_eq!(Place::of(text, second), Place { line: 2, column: 4, text: "üb = 2".to_owned() });
        assert_eq!(Place::of(text, 999).line, 3);
    }
}
