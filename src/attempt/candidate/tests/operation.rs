use super::super::operation::Operation;
use crate::attempt::candidate::{Candidate, operation::CandidateDialect};

#[test]
fn the_longest_known_end_of_the_path_counts() {
    for (path, operation) in [
        ("/v1/chat/completions", Some(Operation::ChatCompletions)),
        ("/v1/chat/completions/", Some(Operation::ChatCompletions)),
        ("chat/completions", Some(Operation::ChatCompletions)),
        (
            "/openai/deployments/x/chat/completions",
            Some(Operation::ChatCompletions),
        ),
        ("/v1/responses", Some(Operation::Responses)),
        ("/v1/messages", Some(Operation::Messages)),
        ("/v1/messages/count_tokens", Some(Operation::CountTokens)),
        ("/embeddings", Some(Operation::Embeddings)),
        ("/v1/images/generations", Some(Operation::ImageGenerations)),
        ("/v1/images/edits", Some(Operation::ImageEdits)),
        ("/v1/images/variations", Some(Operation::ImageVariations)),
        ("/v1/completions", None),
        ("/v1/xchat/completions", None),
        ("/v1/mymessages", None),
        ("/v1/responses/resp_1", None),
        ("/v1/models", None),
        ("/", None),
        ("", None),
    ] {
        assert_eq!(Operation::from_path(path), operation, "{path}");
    }
}

#[test]
fn a_candidate_speaks_its_dialect() {
    let openai = Candidate::new("m").dialect(CandidateDialect::OpenAi);
    let anthropic = Candidate::new("m").dialect(CandidateDialect::Anthropic);
    for operation in Operation::ALL {
        let messages = matches!(operation, Operation::Messages | Operation::CountTokens);
        assert!(Candidate::new("m").speaks(Some(operation)));
        assert_eq!(openai.speaks(Some(operation)), !messages);
        assert_eq!(anthropic.speaks(Some(operation)), messages);
    }
    assert!(openai.speaks(None) && anthropic.speaks(None));
}
