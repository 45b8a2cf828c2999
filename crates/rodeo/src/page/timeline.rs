//! When what was done to which machine, as a picture. Only observations that carry a time are drawn.

use maud::{Markup, html};

use crate::evidence::verify::Story;
use crate::observe::{Action, Answer, Attempt, Exchange, Preparation};

/// One thing that was done or asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// What, for people.
    pub label: String,
    /// Colour class.
    pub kind: &'static str,
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// How long, in milliseconds.
    pub took_ms: u64,
}

/// One machine's line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The machine's part in the run.
    pub name: String,
    /// What was done to it.
    pub spans: Vec<Span>,
}

/// All lines of a run.
pub fn lanes(story: &Story) -> Vec<Lane> {
    let mut source = story.source_prepared.as_ref().map(preparation).unwrap_or_default();
    if let Some(record) = &story.source {
        source.extend(record.watch.sighting.as_ref().map(|seen| ask("look for markers", "look", &seen.status)));
        source.extend(record.watch.end.as_ref().map(|end| ask("status at the end", "look", end)));
    }
    let mut twin = story.twin_prepared.as_ref().map(preparation).unwrap_or_default();
    twin.extend(story.twin.as_ref().map(|record| attempt(&record.attempt)).unwrap_or_default());
    let mut lanes = vec![Lane { name: "source".into(), spans: source }, Lane { name: "twin".into(), spans: twin }];
    lanes.extend(
        story.branches.iter().map(|branch| Lane { name: branch.patch.clone(), spans: attempt(&branch.attempt) }),
    );
    if let Some(cold) = &story.cold {
        let mut spans: Vec<Span> = cold.steps.iter().map(|step| act("prepare", step)).collect();
        spans.extend(attempt(&cold.attempt));
        lanes.push(Lane { name: "cold control".into(), spans });
    }
    lanes.retain(|lane| !lane.spans.is_empty());
    lanes
}

fn preparation(record: &Preparation) -> Vec<Span> {
    let mut spans: Vec<Span> = record.steps.iter().map(|step| act("prepare", step)).collect();
    spans.extend(record.submitted.as_ref().map(|exchange| ask("submit the jobs", "change", exchange)));
    spans.extend(record.status.as_ref().map(|exchange| ask("status", "look", exchange)));
    spans
}

fn attempt(attempt: &Attempt) -> Vec<Span> {
    let mut spans = Vec::new();
    spans.extend(attempt.before.as_ref().map(|exchange| ask("status before", "look", exchange)));
    if let Some(markers) = &attempt.markers {
        spans.push(ask("set the marker in memory", "change", &markers.set));
        spans.push(act("change", &markers.put));
    }
    spans.extend(attempt.sighting.as_ref().map(|seen| ask("look for markers", "look", &seen.status)));
    spans.extend(attempt.put.as_ref().map(|put| act("patch", put)));
    spans.extend(attempt.release.as_ref().map(|exchange| ask("release", "release", exchange)));
    spans.extend(attempt.results.as_ref().map(|exchange| ask("results", "look", exchange)));
    spans.extend(attempt.after.as_ref().map(|exchange| ask("status at the end", "look", exchange)));
    spans
}

fn ask(what: &str, kind: &'static str, exchange: &Exchange) -> Span {
    let (kind, told) = match &exchange.answer {
        Answer::Response { status, .. } => (kind, status.to_string()),
        Answer::Error { message } => ("wrong", message.clone()),
    };
    let label = format!("{what}: {} {} → {told}, {} ms", exchange.method, exchange.path, exchange.took_ms);
    Span { label, kind, at_ms: exchange.at_ms, took_ms: exchange.took_ms }
}

fn act(kind: &'static str, action: &Action) -> Span {
    let (kind, told) = match &action.error {
        None => (kind, String::new()),
        Some(error) => ("wrong", format!(" failed: {error}")),
    };
    let label = format!("{}{told}, {} ms", action.what, action.took_ms);
    Span { label, kind, at_ms: action.at_ms, took_ms: action.took_ms }
}

/// Left of the lines stand the names.
const NAMES_WIDTH: i64 = 130;
/// Width of the lines.
const WIDTH: i64 = 830;
/// Height of one line.
const LANE_HEIGHT: i64 = 28;
/// A thing that took no time is still seen.
const SPAN_WIDTH_MIN: f64 = 2.5;

/// The picture, or nothing where no time is known.
pub fn picture(lanes: &[Lane]) -> Markup {
    let spans = || lanes.iter().flat_map(|lane| &lane.spans);
    // Times in a bundle are anybody's numbers.
    let end_of = |span: &Span| span.at_ms.saturating_add(i64::try_from(span.took_ms).unwrap_or(i64::MAX));
    let (Some(begin), Some(end)) = (spans().map(|span| span.at_ms).min(), spans().map(end_of).max()) else {
        return html! {};
    };
    #[allow(clippy::cast_precision_loss)]
    let scale = WIDTH as f64 / end.saturating_sub(begin).max(1) as f64;
    #[allow(clippy::cast_precision_loss)]
    let place = |ms: i64| NAMES_WIDTH as f64 + ms.saturating_sub(begin) as f64 * scale;
    let height = LANE_HEIGHT * i64::try_from(lanes.len()).unwrap_or(1) + 26;
    let total = end.saturating_sub(begin);
    html! {
        svg.timeline viewBox=(format!("0 0 {} {height}", NAMES_WIDTH + WIDTH + 10)) role="img" aria-label="When what was done to which machine" {
            @for tick in ticks(total) {
                @let x = format!("{:.1}", place(begin.saturating_add(tick)));
                line.tick x1=(x) x2=(x) y1="0" y2=(height - 20) {}
                text.tick x=(x) y=(height - 6) { (tick) " ms" }
            }
            @for (lane, y) in lanes.iter().zip((0..).map(|index| index * LANE_HEIGHT)) {
                text.lane x="0" y=(y + 19) { (lane.name) }
                line.lane x1=(NAMES_WIDTH) x2=(NAMES_WIDTH + WIDTH) y1=(y + 14) y2=(y + 14) {}
                @for span in &lane.spans {
                    @let width = (place(end_of(span)) - place(span.at_ms)).max(SPAN_WIDTH_MIN);
                    rect class=(span.kind) x=(format!("{:.1}", place(span.at_ms))) y=(y + 5) width=(format!("{width:.1}")) height="18" rx="2" {
                        title { (span.label) }
                    }
                }
            }
        }
    }
}

/// Four to nine round times from 0 on.
fn ticks(total: i64) -> Vec<i64> {
    let mut step: i64 = 1;
    for factor in [2, 5, 10].into_iter().cycle() {
        if total / step <= 8 {
            break;
        }
        step = match factor {
            2 => step.saturating_mul(2),
            5 => (step / 2).saturating_mul(5),
            _ => (step / 5).saturating_mul(10),
        };
    }
    (0..=8).map(|index| step.saturating_mul(index)).take_while(|tick| *tick <= total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few_whatever_the_length() {
        for total in [0, 1, 7, 9, 93, 1_134, 59_000, 3_600_000, i64::MAX] {
            let ticks = ticks(total);
            assert!((1..=9).contains(&ticks.len()), "{total}: {ticks:?}");
            assert!(ticks.iter().all(|tick| *tick <= total));
        }
        assert_eq!(ticks(1_134), [0, 200, 400, 600, 800, 1_000]);
    }

    #[test]
    fn absurd_times_make_a_picture_all_the_same() {
        let span = |at_ms, took_ms| Span { label: "<b>".into(), kind: "look", at_ms, took_ms };
        let lanes = [Lane { name: "a&b".into(), spans: vec![span(i64::MIN, u64::MAX), span(i64::MAX, 0)] }];
        let text = picture(&lanes).into_string();
        assert!(text.contains("a&amp;b") && text.contains("&lt;b&gt;") && !text.contains("NaN"), "{text}");
        assert_eq!(picture(&[]).into_string(), "");
    }
}
