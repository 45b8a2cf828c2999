//! Text of somebody else's, as it may be shown to people: on one line, without what would steer a terminal or turn the
//! order of what is read.

/// The text on one line, at most so many characters of it.
pub fn line(text: &str, characters_max: usize) -> String {
    let mut safe: String = text.chars().take(characters_max).map(|c| if steers(c) { ' ' } else { c }).collect();
    if text.chars().nth(characters_max).is_some() {
        safe.push('…');
    }
    safe
}

/// Control characters, and those that change the direction of text.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_and_nothing_is_endless() {
        assert_eq!(line("a\u{1b}[31mb\n\u{202e}c\u{85}d", 100), "a [31mb  c d");
        assert_eq!(line("abc", 3), "abc");
        assert_eq!(line("abcd", 3), "abc…");
    }
}
