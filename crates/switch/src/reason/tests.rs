use super::*;

#[test]
fn names_are_unique_kebab_case_and_numbers_are_indices() {
    let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    for (index, reason) in DropReason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, index);
        assert!(reason.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
        assert!(reason.help().ends_with('.') && !reason.help().trim_end_matches('.').is_empty());
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), DropReason::ALL.len());
}

#[test]
fn drops_count_merge_and_list() {
    let mut drops = Drops::new();
    drops.add(DropReason::Internal, 2);
    drops.add(DropReason::Runt, 1);
    let mut sum = drops.clone();
    sum.merge(&drops);
    assert_eq!(sum.get(DropReason::Internal), 4);
    assert_eq!(sum.total(), 6);
    let listed: Vec<_> = sum.iter().collect();
    assert_eq!(listed, [(DropReason::Runt, 2), (DropReason::Internal, 4)]);
}
