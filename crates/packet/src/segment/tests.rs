use super::*;

#[test]
fn what_does_not_belong_together_is_not_cut() {
    let gso = Gso { kind: GsoKind::Tcp4, ecn: false, size: 10, l3: 14, l4: 34, header_len: 54 };
    let make = |gso: Gso, head: usize, frame: usize| {
        let checked = Checked { gso: Some(gso), ..Checked::PLAIN };
        Segmenter::new(&[0; 200][..head], frame, &checked).is_some()
    };
    assert!(make(gso, 54, 55));
    assert!(!make(gso, 54, 54), "no payload");
    assert!(!make(gso, 53, 100), "headers not in the head");
    assert!(!make(Gso { size: 0, ..gso }, 54, 100));
    assert!(!make(Gso { l4: 54, ..gso }, 54, 100));
    assert!(!make(Gso { l3: 34, ..gso }, 54, 100));
    assert!(make(Gso { header_len: 136, ..gso }, 136, 200));
    assert!(!make(Gso { header_len: 137, ..gso }, 137, 200), "more than the scratch memory");
    assert!(Segmenter::new(&[0; 54], 100, &Checked::PLAIN).is_none());
}

#[test]
fn a_checksum_that_comes_out_as_zero_is_written_as_ones() {
    let gso = Gso { kind: GsoKind::Udp4, ecn: false, size: 2, l3: 14, l4: 34, header_len: 42 };
    let checked = Checked { gso: Some(gso), ..Checked::PLAIN };
    let mut scratch: Scratch = [0; size_of::<Scratch>()];
    let mut sum = |payload: [u8; 2]| {
        let frame = [&[1; 42][..], &payload].concat();
        let mut sum = [0; 2];
        segment(&frame, &checked, ChecksumMode::Full, &mut scratch, |header, _, _| {
            sum.copy_from_slice(&header[40..42]);
        });
        sum
    };
    let rest = sum([0, 0]);
    assert_eq!(sum(rest), [0xff, 0xff]);
}
