//! Medians and percentiles.

use serde::{Deserialize, Serialize};

/// The middle and the ends of some values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle one (of an even number: the mean of the two).
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// How many.
    pub n: usize,
}

/// Summary of values; none of none.
#[must_use]
pub fn summary(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let (&min, &max) = (values.first()?, values.last()?);
    let (low, high) = (values.get((n - 1) / 2)?, values.get(n / 2)?);
    Some(Summary { median: (low + high) / 2.0, min, max, n })
}

/// The value below or at which a share of sorted values lies (nearest rank); none of none.
#[must_use]
pub fn percentile(sorted: &[u32], share: f64) -> Option<u32> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_ends() {
        let s = summary([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((s.median, s.min, s.max, s.n), (2.0, 1.0, 3.0, 3));
        assert_eq!(summary([4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(summary([]), None);
        assert_eq!(summary([f64::NAN]), None);
    }

    #[test]
    fn nearest_rank() {
        let values: Vec<u32> = (1..=1000).collect();
        assert_eq!(percentile(&values, 0.5), Some(500));
        assert_eq!(percentile(&values, 0.99), Some(990));
        assert_eq!(percentile(&values, 0.999), Some(999));
        assert_eq!(percentile(&values, 1.0), Some(1000));
        assert_eq!(percentile(&values, 0.0), Some(1));
        assert_eq!(percentile(&[7], 0.999), Some(7));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
