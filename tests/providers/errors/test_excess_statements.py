"""Statements of excess, put together from subjects, relations and frames in thirteen languages.

The sentences are written out here, in words of their own, and not taken from the tables that are tested. Every
combination is tried, so that both counts are exact: overflows that are missed, and other things taken for overflows.
"""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.excess_statements import find_excess_statements
from holdfast.providers.errors.report import ErrorReport

FRAMES = (
    "{}",
    "Error: {}",
    "400 Bad Request: {}",
    '{{"error": {{"message": "{}", "type": "invalid_request_error"}}}}',
    "The upstream model returned an error: {}.",
)
STATUSES = (None, 400, 422)
# Of each language: subjects that are the prompt, subjects that are not, and sentences about either.
LANGUAGES = {
    "en": (
        ("the prompt", "your input", "the conversation", "this dialogue", "the length of the prompt", "input text",
         "the transcript of the conversation", "conversation history"),
        ("the image in the conversation", "one of the files attached to your message", "the title of the conversation",
         "the name of the prompt", "the picture in this prompt", "number of tools in the request", "the header field",
         "the description of the input"),
        ("{} is too long", "{} has exceeded the limit", "{} surpasses the maximum", "{} is larger than allowed",
         "{} has reached the limit", "{} goes beyond the allowed maximum"),
    ),
    "zh": (("输入", "提示词", "对话", "输入内容", "会话长度"),
           ("对话中的图片", "会话标题", "提示词名称", "请求中的工具数量", "上传的文件"),
           ("{}过长", "{}超过最大限制", "{}已达到上限", "{}超出限制", "您的{}太长")),
    "ja": (("入力", "プロンプト", "会話", "会話の長さ"),
           ("会話の画像", "プロンプトのタイトル", "添付ファイル", "リクエストのツール"),
           ("{}が長すぎます", "{}が上限を超えています", "{}が上限に達しました", "{}が制限を超過しました")),
    "ko": (("입력", "프롬프트", "대화", "대화 길이"), ("대화의 이미지", "프롬프트 제목", "첨부 파일", "요청의 도구"),
           ("{}이 너무 깁니다", "{}이 한도를 초과했습니다", "{}이 최대 제한에 도달했습니다")),
    "ru": (("промпт", "диалог", "контекст", "длина сообщения"),
           ("изображение в диалоге", "название диалога", "файл в сообщении", "параметр запроса"),
           ("{} превышает лимит", "{} слишком длинный", "{} достиг предела")),
    "de": (("die Eingabe", "der Kontext", "die Unterhaltung", "die Länge der Nachricht"),
           ("das Bild in der Unterhaltung", "der Titel der Unterhaltung", "die Datei im Prompt", "der Dateiname"),
           ("{} ist zu lang", "{} überschreitet das Limit", "{} hat die Obergrenze erreicht")),
    "fr": (("la conversation", "le contexte", "le prompt", "la longueur du message"),
           ("l'image de la conversation", "le titre de la conversation", "le fichier du message", "le nom du champ"),
           ("{} est trop long", "{} dépasse la limite", "{} a atteint la limite")),
    "es": (("la entrada", "la conversación", "el contexto", "la longitud del mensaje"),
           ("la imagen de la conversación", "el título de la conversación", "el archivo del mensaje"),
           ("{} es demasiado larga", "{} supera el límite", "{} ha alcanzado el límite", "{} excede el máximo")),
    "pt": (("a entrada", "a conversa", "o contexto", "o comprimento da mensagem"),
           ("a imagem da conversa", "o título da conversa", "o arquivo da mensagem"),
           ("{} é muito longa", "{} excede o limite", "{} ultrapassou o limite", "{} atingiu o limite")),
    "it": (("la conversazione", "il contesto", "il prompt", "la lunghezza del messaggio"),
           ("l'immagine della conversazione", "il titolo della conversazione", "il file del messaggio"),
           ("{} è troppo lungo", "{} supera il limite", "{} ha raggiunto il limite")),
    "pl": (("konwersacja", "kontekst", "długość wiadomości"),
           ("obraz w rozmowie", "tytuł rozmowy", "plik w wiadomości"),
           ("{} jest zbyt długa", "{} przekracza limit", "{} osiągnęła limit")),
    "tr": (("girdi", "konuşma", "bağlam", "mesaj uzunluğu"),
           ("konuşmadaki resim", "konuşmanın başlığı", "mesajdaki dosya"),
           ("{} çok uzun", "{} sınırı aşıyor", "{} sınıra ulaştı")),
    "vi": (("đầu vào", "cuộc trò chuyện", "ngữ cảnh", "độ dài tin nhắn"),
           ("hình ảnh trong cuộc trò chuyện", "tiêu đề cuộc trò chuyện", "tệp trong tin nhắn"),
           ("{} quá dài", "{} vượt quá giới hạn", "{} đã đạt đến giới hạn")),
}  # fmt: skip


def list_texts(subjects, sentences):
    for subject, sentence, frame, status in product(subjects, sentences, FRAMES, STATUSES):
        yield frame.format(sentence.format(subject)), status


def is_overflow(text, status):
    return classify_error(ErrorReport(status=status, body=text)).is_overflow


@pytest.mark.parametrize("language", LANGUAGES)
def test_classify_error_finds_each_statement_about_the_prompt(language):
    """A subject that is the prompt and a relation of excess are an overflow, in whatever words and frame."""
    prompts, _, sentences = LANGUAGES[language]
    missed = {text for text, status in list_texts(prompts, sentences) if not is_overflow(text, status)}
    assert missed == set()


@pytest.mark.parametrize("language", LANGUAGES)
def test_classify_error_leaves_statements_about_other_things(language):
    """A part of a request that no shorter conversation cures is no overflow, also where the conversation is named."""
    _, others, sentences = LANGUAGES[language]
    false_alarms = {text for text, status in list_texts(others, sentences) if is_overflow(text, status)}
    assert false_alarms == set()


def test_find_excess_statements_leaves_denials_and_conditions():
    """What is said not to be too long, or only in some other case, is no statement of excess."""
    for text in ("the prompt does not exceed the limit", "the input is not too long", "if the prompt is too long"):
        assert find_excess_statements(text) == []
