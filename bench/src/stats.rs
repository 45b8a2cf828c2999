//! Order statistics of a row of samples. Pure; it never drops a sample and never rounds one.

use serde::Serialize;

/// What is told of a row of samples, all in the samples' own unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// How many samples.
    pub n: usize,
    /// Half of the samples are below it.
    pub median: f64,
    /// A tenth of the samples is below it.
    pub p10: f64,
    /// Nine tenths of the samples are below it.
    pub p90: f64,
    /// The least sample.
    pub min: f64,
    /// The greatest sample.
    pub max: f64,
}

impl Summary {
    /// Summarises samples in any order; `None` where there are none, or one is not a number.
    pub(crate) fn of(samples: &[f64]) -> Option<Summary> {
        if samples.iter().any(|s| s.is_nan()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Summary {
            n: sorted.len(),
            median: quantile(&sorted, 0.5)?,
            p10: quantile(&sorted, 0.1)?,
            p90: quantile(&sorted, 0.9)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }
}

/// The quantile `q` (0–1) of samples in rising order, interpolated linearly between the two nearest ranks.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_nothing_there_is_no_summary() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn one_sample_is_all_of_its_statistics() {
        let s = Summary::of(&[7.5]).unwrap();
        assert_eq!((s.n, s.median, s.p10, s.p90, s.min, s.max), (1, 7.5, 7.5, 7.5, 7.5, 7.5));
    }

    #[test]
    fn odd_and_even_medians() {
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]).unwrap().median, 2.0);
        assert_eq!(Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap().median, 2.5);
    }

    #[test]
    fn tails_are_interpolated_and_order_does_not_matter() {
        let rising: Vec<f64> = (0..=10).map(f64::from).collect();
        let falling: Vec<f64> = rising.iter().rev().copied().collect();
        let s = Summary::of(&falling).unwrap();
        assert_eq!((s.p10, s.median, s.p90, s.min, s.max), (1.0, 5.0, 9.0, 0.0, 10.0));
        assert_eq!(Summary::of(&rising), Some(s));
        let two = Summary::of(&[10.0, 20.0]).unwrap();
        assert!((two.p10 - 11.0).abs() < 1e-9 && (two.p90 - 19.0).abs() < 1e-9);
    }

    #[test]
    fn an_outlier_moves_the_maximum_and_not_the_median() {
        let s = Summary::of(&[1.0, 1.0, 1.0, 1.0, 1000.0]).unwrap();
        assert_eq!((s.median, s.max), (1.0, 1000.0));
    }
}
