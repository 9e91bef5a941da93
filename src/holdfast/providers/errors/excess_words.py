"""Words of which statements of excess are made, by language: what is too large, how that is said, and in which unit.

``excess_statements`` reads them. All words are compared with text in lower case without accents and underscores, so
they are written without (Cyrillic ``й`` as ``и``, ``ß`` as ``ss``, ``đ`` as ``d``). A new language is one more line in
each table, with its name behind it; a new word is one more alternative in its line.
"""

# ruff: noqa: E501 (rows of wide characters)

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# The whole input of a model: any statement of excess about it is an overflow.
_PROMPT = (
    r"\b(?:prompts?|inputs?|conversations?|dialog(?:ue)?s?|histor(?:y|ies)|contexts?|transcripts?|sequences?)\b",  # English
    r"提示词?|提示詞|输入|輸入|上下文|对话|對話|会话|會話|聊天记录|历史|歷史",  # Chinese
    r"プロンプト|入力|会話|コンテキスト|コンテクスト|文脈|対話|履歴",  # Japanese
    r"프롬프트|입력|대화|컨텍스트|콘텍스트|문맥|맥락",  # Korean
    r"\b(?:промпт|промт|подсказк|ввод|входн|диалог|бесед|разговор|контекст|переписк)\w*",  # Russian
    r"\b(?:eingabe|kontext|konversation|unterhaltung|gesprach|verlauf|prompt)\w*",  # German
    r"\b(?:entrees?|contexte|historique|echange|invite)\b",  # French
    r"\b(?:entrada|contexto|conversacion(?:es)?|dialogo|historial|indicacion|instruccion(?:es)?)\b",  # Spanish
    r"\b(?:conversas?|historico|instruc(?:ao|oes))\b",  # Portuguese
    r"\b(?:contesto|conversazion[ei]|cronologia|immissione)\b",  # Italian
    r"\b(?:wejsci|kontekst|konwersacj|rozmow|histori|podpowied)\w*",  # Polish
    r"\b(?:girdi|istem|baglam|konusma|sohbet|gecmis|diyalog)\w*",  # Turkish
    r"\b(?:dau vao|ngu canh|hoi thoai|tro chuyen|loi nhac|lich su)\b",  # Vietnamese
    r"\b(?:invoer|gesprek\w*|geschiedenis)\b",  # Dutch
)
# Names of the input that quotas are counted in as well ("message limit reached"): a limit that is reached or exceeded
# needs a unit of length beside them.
_MESSAGE = (
    (
        r"\b(?:messages?|chats?|sessions?|threads?|request|query|queries|questions?|payloads?|bod(?:y|ies)|entity|texts?|"
        r"contents?)\b"
    ),  # English
    r"消息|讯息|訊息|信息|文本|文字|内容|內容|请求|請求|问题|提问|正文|报文",  # Chinese
    r"メッセージ|テキスト|文章|リクエスト|質問|本文|ペイロード|チャット",  # Japanese
    r"메시지|텍스트|요청|내용|질문|본문|채팅",  # Korean
    r"\b(?:сообщени|текст|запрос|вопрос|чат)\w*|\bтел[оа]\b",  # Russian
    r"\b(?:nachricht|text|anfrage|inhalt|nutzlast)\w*",  # German
    r"\b(?:textes?|requete|contenu|demande|corps)\b",  # French
    r"\b(?:mensajes?|textos?|solicitud|peticion|contenido|consulta|pregunta|cuerpo)\b",  # Spanish
    r"\b(?:mensage(?:m|ns)|solicitacao|pedido|requisicao|conteudo|corpo)\b",  # Portuguese
    r"\b(?:messaggi[o]?|test[oi]|richiesta|contenut[oi]|domanda)\b",  # Italian
    r"\b(?:wiadomosc|tekst|zapytani|zadani|tresc|pytani)\w*",  # Polish
    r"\b(?:mesaj|metin|metn|isteg|icerik|icerig|soru)\w*|\bistek\b",  # Turkish
    r"\b(?:tin nhan|van ban|yeu cau|noi dung|cau hoi)\b",  # Vietnamese
    r"\b(?:bericht(?:en)?|tekst\w*|verzoek|inhoud|vraag)\b",  # Dutch
)
_MEDIA = (
    (
        r"\b(?:images?|pictures?|photos?|screenshots?|files?|filesize|attachments?|documents?|pdfs?|audios?|videos?|"
        r"uploads?|uploaded|media|pixels?|recordings?|clips?|pages?|spreadsheets?)\b"
    ),  # English
    r"图片|图像|圖片|圖像|影像|照片|文件|檔案|档案|附件|文档|文檔|音频|音訊|视频|影片|上传|上傳|截图|像素",  # Chinese
    r"画像|写真|ファイル|添付|音声|動画|ドキュメント|アップロード|ピクセル",  # Japanese
    r"이미지|사진|파일|첨부|오디오|동영상|비디오|문서|업로드|픽셀",  # Korean
    r"\b(?:изображени|картин|фото|фаил|вложени|документ|аудио|видео|загруж)\w*",  # Russian
    r"\b(?:bild|bilder|foto|anhang|anhange|dokument|hochgeladen)\w*|\b\w*datei\w*",  # German
    r"\b(?:limages?|fichiers?|pieces? jointes?)\b",  # French
    r"\b(?:imagen(?:es)?|fotos?|archivos?|ficheros?|adjuntos?|documentos?)\b",  # Spanish
    r"\b(?:image(?:m|ns)|arquivos?|ficheiros?|anexos?)\b",  # Portuguese
    r"\b(?:l?immagin[ei]|l?allegat[oi]|document[oi])\b",  # Italian
    r"\b(?:obraz|zdjeci|plik|zalacznik|wideo)\w*",  # Polish
    r"\b(?:resim|resm|gorsel|fotograf|dosya|belge)\w*",  # Turkish
    r"\b(?:hinh anh|anh|tep|tap tin|tai lieu|dinh kem|am thanh)\b",  # Vietnamese
    r"\b(?:afbeelding|bestand|bijlage)\w*",  # Dutch
)
_OUTPUT = (
    (
        r"\b(?:max (?:new |completion |output )?tokens|maxoutputtokens|maximum tokens (?:you )?requested|outputs?|completions?|responses?|answers?|"
        r"repl(?:y|ies)|generations?|generated|reasoning|thinking)\b"
    ),  # English
    r"输出|輸出|回复|回覆|回答|答复|生成|补全",  # Chinese
    r"出力|回答|応答|生成|返答",  # Japanese
    r"출력|응답|답변|생성",  # Korean
    r"\b(?:вывод|ответ|генерац|выходн)\w*",  # Russian
    r"\b(?:ausgabe|antwort|generier)\w*",  # German
    r"\b(?:sortie|reponse)s?\b",  # French
    r"\b(?:salida|respuesta)s?\b",  # Spanish
    r"\b(?:saida|resposta)s?\b",  # Portuguese
    r"\b(?:uscita|rispost[ae])\b",  # Italian
    r"\b(?:odpowied|wyjsci|generowan)\w*",  # Polish
    r"\b(?:cikti|yanit|cevap)\w*",  # Turkish
    r"\b(?:dau ra|phan hoi|cau tra loi|tra loi)\b",  # Vietnamese
    r"\b(?:uitvoer|antwoord\w*)\b",  # Dutch
)
# Before "number" may stand what is counted, and a number of tokens or characters is a length.
_COUNTED_UNIT = (
    r"(?:token|jeton|char|caract|caratter|zeichen|mots\b|word|palabras|bytes?\b|символ|знак|токен|znak|ky tu|teken)"
)
_ITEM = (
    (
        r"\b(?:tools?|functions?|items?|elements?|rows?|records?|results?|entries|choices|candidates|stop sequences?|stops|"
        r"labels?|tags?|users|members|connections?|retries|attempts?|steps?|iterations?|turns?|nodes?|depth|recursion|"
        r"batch(?:es)?|embeddings?(?! model)|vectors?|dimensions?|breakpoints?|blocks?|keys|projects?|folders?|agents?|workers?|jobs?|"
        r"tasks?|array|lines?|redirects?|variables?|properties)\b|\bnumber of messages\b|\bmessages? count\b|\d messages\b|"
        r"\b\d+ (?:\w+ )?messages\b"
    ),  # English
    (
        r"(?<!token)(?<!token )(?<!tokens)(?<!tokens )(?<!令牌)(?<!字符)数量|次数|条数|个数|工具|函数|行数|项目|标签|层数|深度|"
        r"批次|轮次|用户|成员|连接"
    ),  # Chinese
    r"件数|個数|回数|ツール|関数|項目|タグ|行数|ユーザー|接続",  # Japanese
    r"개수|횟수|도구|함수|항목|태그|사용자|연결",  # Korean
    (
        rf"\b(?:количеств|числ)\w* (?!(?:\w+ )?{_COUNTED_UNIT})|\b(?:инструмент|функци|элемент|тег|пользовател|подключени|"
        r"попыт)\w*"
    ),  # Russian
    rf"\banzahl (?!(?:der )?(?:\w+-)?{_COUNTED_UNIT})|\b(?:werkzeug|funktion|element|benutzer|verbindung|versuch)\w*",  # German
    rf"\bnombre (?!(?:maximal |total )?(?:de )?{_COUNTED_UNIT})|\b(?:outils?|fonctions?|utilisateurs?|etiquettes?)\b",  # French
    (
        rf"\bnumer?os? (?!(?:maximo |massimo |total )?(?:de |di )?{_COUNTED_UNIT})|\b(?:herramientas?|funciones|elementos|"
        r"usuarios?|etiquetas)\b"
    ),  # Spanish
    r"\b(?:ferramentas?|funcoes|itens)\b",  # Portuguese
    r"\b(?:strument[oi]|funzion[ei]|elementi|utent[ei])\b",  # Italian
    rf"\bliczb\w+ (?!(?:\w+ )?{_COUNTED_UNIT})|\b(?:narzedzi|funkcj|uzytkown)\w*",  # Polish
    r"(?<!token )(?<!karakter )\bsayi\w*|\b(?:arac|fonksiyon|oge|kullanici)\w*",  # Turkish
    r"\bso luong (?!token|ky tu)|\b(?:cong cu|nguoi dung)\b",  # Vietnamese
    rf"\baantal (?!(?:\w+ )?{_COUNTED_UNIT})|\b(?:hulpmiddel\w*|functies|gebruikers)\b",  # Dutch
)
_PARAMETER = (
    (
        r"\b(?:names?|ids?|identifiers?|titles?|descriptions?|headers?|urls?|uris?|links?|fields?|param(?:eter)?s?|"
        r"arguments?|values?|metadata|schemas?|temperature|penalty|seed|passwords?|usernames?|email|timeouts?|deadlines?|"
        r"time|durations?|latency|delays?|cookies?|paths?|versions?|dates?|regex|signatures?|memory|ram|vram|disk|storage|"
        r"grammar|budget tokens|thinking budget|slug|labels|comments?|keywords?|cells?|risk|jwt|(?:access|api|auth\w*|bearer|security|session|csrf) tokens?)\b"
    ),  # English
    (
        r"名称|名字|名稱|标题|標題|描述|参数|參數|字段|欄位|密码|密碼|网址|链接|地址|温度|标识|编号|超时|时间|時間|内存|显存|"
        r"磁盘"
    ),  # Chinese
    r"名前|名が|名は|タイトル|説明|パラメータ|フィールド|パスワード|時間|メモリ|タイムアウト|識別子|ヘッダ",  # Japanese
    r"이름|제목|설명|매개변수|필드|비밀번호|시간|메모리|식별자|헤더",  # Korean
    r"\b(?:им(?:я|ени)\b|назван|заголов|описани|параметр|парол|врем|памят|идентификатор|ссылк)\w*|\bпол[еяю]\b",  # Russian
    r"\b(?:titel|beschreibung|parameter|passwort|kennwort|kennung|zeit|speicher)\w*|\b\w*(?:name[ns]?|feld)\b",  # German
    r"\b(?:noms?|titres?|parametres?|champs?|mot de passe|temps|delai|memoire|identifiant)\b",  # French
    r"\b(?:nombres? (?:de|del)\b|titulos?|descripcion|parametros?|campos?|contrasena|tiempo|memoria|identificador)\b",  # Spanish
    r"\b(?:nomes?|descricao|senha|tempo)\b",  # Portuguese
    r"\b(?:titol[oi]|descrizion[ei]|parametr[oi]|camp[oi]|identificativo)\b",  # Italian
    r"\b(?:nazw|tytul|opis|haslo|czas|pamie[ct]|identyfikator)\w*|\bpol[ea]\b",  # Polish
    r"\b(?:adi|isim|ismi|baslig|baslik|aciklama|parametre|parola|sifre|sure|bellek|bellegi|kimlik)\w*",  # Turkish
    r"\b(?:ten|tieu de|mo ta|tham so|truong|mat khau|thoi gian|bo nho|dinh danh)\b",  # Vietnamese
    r"\b(?:naam|beschrijving|wachtwoord|geheugen|tijd)\b",  # Dutch
)
_RATE = (
    (
        r"\b(?:rates?|quotas?|requests|calls?|concurren\w*|credits?|usage|spend\w*|traffic|throughput|[tr]p[mdhs]|"
        r"subscriptions?|plans?|tiers?|accounts?|organi[sz]ations?|queues?|backlog|balance|costs?|funds|minutes?|hours?|days?|daily|weeks?|weekly|"
        r"months?|monthly|per[ -]user|free)\b"
    ),  # English
    r"频率|频次|频繁|速率|配额|额度|并发|每分钟|每天|每日|今日|今天|限流|用量|套餐|余额|次",  # Chinese
    r"レート|頻度|割り当て|クォータ|同時|分あたり|1日|本日",  # Japanese
    r"속도|빈도|할당량|동시|분당|하루|오늘|쿼터",  # Korean
    r"\b(?:частот|квот|скорост|тариф|подписк)\w*|\bзапросов\b|в минуту|в час|в день",  # Russian
    r"\b(?:rate|quote|kontingent|guthaben|tarif)\w*|\banfragen\b|pro (?:minute|stunde|tag)",  # German
    r"\b(?:debit|frequence|requetes|demandes|forfait|abonnement)\b|par (?:minute|heure|jour)",  # French
    r"\b(?:tasa|cuota|frecuencia|solicitudes|peticiones|creditos?|suscripcion)\b|por (?:minuto|hora|dia)",  # Spanish
    r"\b(?:taxa|cota|frequencia|solicitacoes|requisicoes|pedidos|plano|assinatura)\b",  # Portuguese
    r"\b(?:frequenza|richieste|piano|abbonamento)\b|al (?:minuto|giorno)",  # Italian
    r"\b(?:czestotliwosc|kwot|srodk)\w*|\b(?:zapytan|zadan)\b|na (?:minute|godzine|dzien)",  # Polish
    r"\b(?:kota|hiz|siklig|istekler|kredi)\w*|dakikada|gunluk",  # Turkish
    r"\b(?:tan suat|han muc|han ngach|so yeu cau|tin dung|goi cuoc)\b|moi (?:phut|gio|ngay)",  # Vietnamese
    r"\b(?:verzoeken|tegoed|abonnement)\b|per (?:minuut|uur|dag)",  # Dutch
)
# "input validation error" and "context deadline" are not about the input or the context.
_NEUTRAL = (r"\b(?:validation|errors?|exceptions?|failed|failure|failures|management|caching|cache)\b",)

SUBJECT_WORDS: Final = {
    "neutral": _NEUTRAL,
    "item": _ITEM,
    "media": _MEDIA,
    "output": _OUTPUT,
    "parameter": _PARAMETER,
    "rate": _RATE,
    "prompt": _PROMPT,
    "message": _MESSAGE,
}
"""Nouns by what they stand for; where words of two rows begin at the same place, the upper row counts."""

_TOO_LARGE = (
    r"\b(?:too|overly|excessively)[ -](?:long|large|big|lengthy|huge)\b|\boversized?\b",  # English
    r"(?:过|太|超|過)(?:长|大|長)|超限",  # Chinese
    r"(?:長|大き|なが)(?:すぎ|過ぎ)",  # Japanese
    r"너무 ?(?:길|긴|깁|크|큰|큽)|지나치게 (?:길|긴|크)",  # Korean
    r"слишком (?:длин|больш|велик|объемн)\w*|чрезмерно длин\w*",  # Russian
    r"\bzu (?:lang|gross|umfangreich)\w*",  # German
    r"\btrop (?:long|grand|gros|volumineu|etendu|lourd)\w*",  # French
    r"\b(?:demasiado|muy|excesivamente) (?:larg|grande|extens)\w*",  # Spanish
    r"\b(?:muito|excessivamente) (?:long|grande|extens)\w*|\b(?:long[oa]|grande|extens[oa])s? demais\b",  # Portuguese
    r"\b(?:troppo|eccessivamente) (?:lung|grand|estes)\w*",  # Italian
    r"\b(?:zbyt|za) (?:dlug|duz|obszern)\w*",  # Polish
    r"\bcok (?:uzun|buyuk)\w*|\bfazla uzun\w*",  # Turkish
    r"\bqua (?:dai|lon)\b",  # Vietnamese
    r"\bte (?:lang|groot)\b",  # Dutch
)
_TOO_MANY = (
    r"\b(?:too|overly)[ -](?:many|much)\b|\bexcessive (?:number|amount)\b",  # English
    r"(?:过|太|過)多",  # Chinese
    r"多(?:すぎ|過ぎ)",  # Japanese
    r"너무 ?많",  # Korean
    r"слишком много",  # Russian
    r"\bzu viele?\b",  # German
    r"\btrop (?:de|d)\b",  # French
    r"\bdemasiad[oa]s\b",  # Spanish
    r"\b(?:muit[oa]s|demais)\b",  # Portuguese
    r"\btropp[ie]\b",  # Italian
    r"\b(?:zbyt|za) (?:wiele|duzo)\b",  # Polish
    r"\bcok fazla\b",  # Turkish
    r"\bqua nhieu\b",  # Vietnamese
    r"\bte veel\b",  # Dutch
)
_EXCEEDING = (
    (
        r"\b(?:exceed(?:s|ed|ing)?|surpass\w*|overflow(?:s|ed|ing)|overran|overruns?|outgr[eo]w\w*|over|above|beyond|past)\b|"
        r"\b(?:larger|longer|greater|bigger|more|higher) than\b"
    ),  # English
    r"超过|超出|超過|超了|大于|大於|突破",  # Chinese
    r"超え|超過|上回|オーバー",  # Japanese
    r"초과|넘었|넘습|넘는|넘어|넘겼",  # Korean
    r"\bпревы[шс]\w*|\bпревосход\w*|сверх\b",  # Russian
    r"\buber(?:schreit|schritt|steig|stieg|trifft)\w*",  # German
    r"\b(?:depass|exced)\w*",  # French
    r"\b(?:supera|sobrepas|rebas)\w*",  # Spanish
    r"\b(?:ultrapass|superou)\w*",  # Portuguese
    r"\b(?:superi|eccede|ecced)\w*|\boltre\b",  # Italian
    r"\b(?:przekr)\w*",  # Polish
    r"\b(?:as(?:iyor|ildi|ti|mis|mistir|makta\w*|iliyor|maktadir)|asar)\b",  # Turkish
    r"\bvuot\b",  # Vietnamese
    r"\boverschr\w*",  # Dutch
)
# Only beside a word for a limit: one reaches a server too.
_REACHING = (
    r"\b(?:reach(?:es|ed)?|hits?|attained|maxed)\b",  # English
    r"达到|達到|已达|已達|到达|触及|达(?=上限)",  # Chinese
    r"達し|到達|達する",  # Japanese
    r"도달|다다랐",  # Korean
    r"\b(?:достиг|исчерпан)\w*",  # Russian
    r"\berreicht\w*",  # German
    r"\b(?:attein)\w*",  # French
    r"\b(?:alcanz|llego)\w*",  # Spanish
    r"\b(?:ating|alcanc|chegou)\w*",  # Portuguese
    r"\braggiun\w*",  # Italian
    r"\bosiagn\w*",  # Polish
    r"\bulas\w*|\bdoldu\b",  # Turkish
    r"\bdat\b|\bcham\b",  # Vietnamese
    r"\bbereikt\b",  # Dutch
)
_NOT_FITTING = (
    (
        r"\b(?:not|doesnt|dont|wont|cannot|cant|couldnt|didnt|never|no longer) fit\b|\b(?:no|not enough|insufficient|"
        r"out of) (?:room|space)\b"
    ),  # English
    r"放不下|装不下|容不下|容纳不下|已满",  # Chinese
    r"収まりませ|収まらな|入りきら|入りませ",  # Japanese
    r"들어가지 않|맞지 않|수용할 수 없",  # Korean
    r"\bне (?:помещ|помест|вмеща|вмест|влез|уклад)\w*|\bпереполн\w*",  # Russian
    r"\b(?:passt|passen)\b.{0,24}\bnicht\b",  # German
    r"\bne (?:tient|tiennent|rentre|rentrent) pas\b",  # French
    r"\bno (?:cabe|caben|entra)\b",  # Spanish
    r"\bnao (?:cabe|cabem)\b",  # Portuguese
    r"\bnon (?:entra|rientra|ci sta)\b",  # Italian
    r"\bnie miesc\w*|\bnie zmiesc\w*",  # Polish
    r"\bsigm\w*",  # Turkish
    r"\bkhong vua\b",  # Vietnamese
    r"\b(?:past|passen)\b.{0,24}\bniet\b",  # Dutch
)
RELATION_WORDS: Final = {
    "too_large": _TOO_LARGE,
    "too_many": _TOO_MANY,
    "not_fitting": _NOT_FITTING,
    "exceeding": _EXCEEDING,
    "reaching": _REACHING,
}
"""How excess is said; where two rows match at the same place, the upper one counts."""

_LENGTHS = (
    r"\b(?:\d*(?:tokens?|characters?|chars?|words|bytes?|[kmg]i?b)|lengths?|len|sizes?|long|context|windows?)\b",  # English
    r"长度|長度|字数|字數|字符|字节|令牌|大小|体积",  # Chinese
    r"長さ|長が|文字|トークン|サイズ|バイト",  # Japanese
    r"길이|글자|문자|토큰|크기|바이트",  # Korean
    r"\b(?:длин|символ|знак|токен|размер|объем|баит)\w*",  # Russian
    r"\b(?:zeichen|umfang|bytes)\w*|\b\w*(?:lange|grosse)n?\b",  # German
    r"\b(?:longueur|caracteres?|jetons?|taille|octets?)\b",  # French
    r"\b(?:longitud|tamano|extension)\b",  # Spanish
    r"\b(?:comprimento|tamanho|extensao)\b",  # Portuguese
    r"\b(?:lunghezza|caratteri|dimension[ei])\b",  # Italian
    r"\b(?:dlugosc|znak|token|rozmiar|wielkosc)\w*",  # Polish
    r"\b(?:uzunlu|karakter|token|boyut)\w*",  # Turkish
    r"\b(?:do dai|ky tu|kich thuoc|dung luong)\b",  # Vietnamese
    r"\b(?:tekens|lengte|grootte|omvang)\b",  # Dutch
)
_COUNT_UNITS = (
    (
        r"\b(?:tokens?|characters?|chars|bytes|words)\b|令牌|字符|字节|字数|トークン|文字|토큰|글자|токен|символ|знаков|"
        r"\b(?:zeichen|jetons?|caracteres|caratteri|tokenow|znakow|karakter|ky tu)\b"
    ),
)
_TOKEN_UNITS = (r"\btoken(?:s|ow|en|i|a)?\b|令牌|トークン|토큰|токен|\bjetons?\b",)
_BYTE_UNITS = (r"\b\d*(?:bytes?|[kmg]i?b)\b|字节|バイト|바이트|баит|\boctets?\b",)
_LIMITS = (
    r"\b(?:limits?|maximum|max|cap|ceiling|capacity|threshold|limite[ns]?|limiet(?:en)?)\b",
    r"上限|限制|最大|极限|制限|한도|제한|최대|상한|\b(?:предел|лимит|максим|ограничен)\w*",
    r"\b\w*(?:limit|grenze)\w*|\b(?:maxim|massim|maks|plafond|granic|sinir|azami)\w*|\btope\b|gioi han|toi da",
)

Words = tuple[str, ...]


def compile_words(*words: str) -> re.Pattern[str]:
    """Compile rows of alternatives to one pattern."""
    return re.compile("|".join(words))


def compile_groups(rows: Mapping[str, Words]) -> re.Pattern[str]:
    """Compile named rows to one pattern, in which the name of the group that matched is that of the row."""
    return re.compile("|".join(f"(?P<{name}>{'|'.join(words)})" for name, words in rows.items()))


SUBJECT: Final = compile_groups(SUBJECT_WORDS)
RELATION: Final = compile_groups(RELATION_WORDS)
LENGTH: Final = compile_words(*_LENGTHS)
COUNT_UNIT: Final = compile_words(*_COUNT_UNITS)
TOKEN_UNIT: Final = compile_words(*_TOKEN_UNITS)
BYTE_UNIT: Final = compile_words(*_BYTE_UNITS)
LIMIT: Final = compile_words(*_LIMITS)
HEAD_FINAL: Final = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]|\b(?:cok (?:uzun|buyuk|fazla)|as(?:iyor|ildi|ti)|ulas\w+|sigm\w+)\b"
)
"""Chinese, Japanese, Korean and Turkish, which name the owner before the thing: "the conversation's image"."""
HEAD_INITIAL: Final = re.compile(r"[а-я]|(?:tytul|nazw|opis|obraz|plik|zdjeci|zalaczni|parametr|liczb|dlugosc)")
"""Russian and Polish, which name the thing before the owner without a word between: "title conversation's"."""
JOINED: Final = re.compile(r"\+|\b(?:and|plus|with|und|et|y|e|и|i|ve|va|con|com|avec|mit|en)\b|和|与|加|及|と|와|과")
"""Between prompt and answer: their sum is too large."""
NEGATION: Final = re.compile(
    r"\b(?:(?:does|do|did|is|are|was|were|has|have|had) ?(?:not|nt)|isnt|doesnt|didnt|arent|wasnt|never|nicht|не) "
    r"(?:been )?$|\b(?:should|must|needs? to|has to) be $|(?<!must )(?<!should )(?<!may )\bnot $"
)
"""Before a relation: it is said not to hold, or asked for. (``must not exceed`` states a limit.)"""
CONDITION: Final = re.compile(
    r"^\W*(?:please )?(?:if|when|whenever|unless|whether|in case|falls|wenn|si|se|если|如果)\b"
)
"""At the start of a clause that says what happens in some other case."""
