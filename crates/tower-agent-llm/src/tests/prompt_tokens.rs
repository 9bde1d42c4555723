//! The estimate of a prompt.
//!
//! covers: H8

use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use crate::prompt_tokens;

fn tokens(body: impl AsRef<[u8]>) -> u64 {
    prompt_tokens([body.as_ref()].into_iter())
}

/// Bytes as an image has them, in base64.
fn encoded(len: usize) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut state = 7_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(ALPHABET[(state >> 26) as usize])
    };
    (0..len).map(|_| next()).collect()
}

fn saying(content: impl Into<Value>) -> String {
    json!({"model": "m", "messages": [{"role": "user", "content": content.into()}]}).to_string()
}

/// The tokens of what stands around the content.
fn around() -> u64 {
    (saying("").len() as u64).div_ceil(4)
}

#[test]
fn four_bytes_of_the_body_are_a_token() {
    for content in [
        "",
        "hello",
        "say \"hi\" \\ and go on",
        "日本語のテキスト",
        "\n\t{}[]",
    ] {
        let body = saying(content);
        assert_eq!(tokens(&body), (body.len() as u64).div_ceil(4), "{content}");
    }
    let long = saying("word ".repeat(80_000));
    assert_eq!(tokens(&long), (long.len() as u64).div_ceil(4));
}

#[test]
fn an_image_or_a_file_counts_the_same_at_any_length() {
    for len in [256, 1000, 1_000_003] {
        let data = encoded(len);
        let wrapped = data
            .as_bytes()
            .chunks(76)
            .map(|line| std::str::from_utf8(line).unwrap());
        let wrapped = wrapped.collect::<Vec<_>>().join("\r\n");
        for content in [
            data.clone(),
            data.replace('+', "-").replace('/', "_"),
            data + "==",
            wrapped,
        ] {
            let count = tokens(saying(content));
            assert!((around() + 1500).abs_diff(count) <= 1, "{len}: {count}");
        }
    }
    // As some encoders of JSON write it.
    let escaped = saying(encoded(5000)).replace('/', "\\/");
    assert_eq!(tokens(escaped), around() + 1500);
}

#[test]
fn a_data_url_counts_as_a_file_also_if_it_is_short_or_no_base64() {
    let long = format!("data:image/png;base64,{}", encoded(400_000));
    for url in [
        &*long,
        "data:image/png;base64,iVBORw0KGgo=",
        "data:text/plain;charset=utf-8,a%20b",
    ] {
        assert_eq!(tokens(saying(url)), around() + 1500, "{:.40}", url);
    }
    let parts = json!([
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": long}},
        {"type": "input_image", "image_url": long},
        {"type": "image", "source": {"type": "base64", "data": encoded(90_000)}},
    ]);
    let count = tokens(saying(parts));
    assert!((4500..4700).contains(&count), "{count}");
}

#[test]
fn what_only_looks_like_one_is_text() {
    let digest = "0123456789abcdefABCDEF".repeat(11);
    let texts = [
        digest,
        "x".repeat(4000),
        "word".repeat(1000),
        "12345678".repeat(100),
        format!("{} and more", encoded(4000)),
        format!("see {}", encoded(4000)),
        String::from("data: {\"choices\":[]}, and so on"),
        format!("data:{}", "no media type ".repeat(40)),
    ];
    for text in texts {
        let body = saying(&*text);
        assert_eq!(tokens(&body), (body.len() as u64).div_ceil(4), "{text:.30}");
    }
}

#[test]
fn a_body_that_is_no_object_counts_as_one_file() {
    for body in ["--boundary\r\ncontent", "[1, 2]", "\"text\"", &encoded(900)] {
        assert_eq!(tokens(body), 1500, "{body:.20}");
    }
    assert_eq!((tokens(""), tokens(" \n")), (0, 1));
    assert_eq!(
        tokens(format!(" \n{}", saying("a"))),
        (saying("a").len() as u64 + 2).div_ceil(4)
    );
}

#[test]
fn a_body_in_parts_counts_as_one() {
    let body = saying(encoded(900));
    let at = body.find(r#""m""#).unwrap();
    let parts = [&body[..at], r#""m""#, &body[at + 3..]];
    assert_eq!(
        prompt_tokens(parts.into_iter().map(str::as_bytes)),
        tokens(&body)
    );
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_their_end(
        bytes in vec(prop::sample::select(&b"{}[]\",:\\ /nabcXYZ019+=\xff"[..]), 0..600)
    ) {
        let most = (bytes.len() as u64).div_ceil(4) + 1500 * (bytes.len() as u64 / 256 + 1);
        let attached = bytes.windows(5).filter(|window| window == b"data:").count() as u64;
        prop_assert!(tokens(&bytes) <= most + 1500 * attached);
    }

    #[test]
    fn any_text_without_long_words_counts_by_its_length(text in "[ -~\\n\u{e9}]{0,200}") {
        let body = saying(&*text);
        prop_assume!(!text.starts_with("data:"));
        prop_assert_eq!(tokens(&body), (body.len() as u64).div_ceil(4));
    }
}
